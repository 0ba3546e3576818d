//! Assembles every kernel for every GPU generation, and checks registers, shared memory and spills against the budgets.

use std::path::Path;
use std::process::Command;

use trueno_gpu::Target;
use trueno_gpu::kernels::{self, Kernel};

/// Compute capabilities from Volta to Blackwell.
const CAPABILITIES: [(u32, u32); 8] = [(7, 0), (7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)];

/// The report of ptxas about a kernel.
struct Usage {
    registers: u32,
    spilled_bytes: u32,
}

/// Runs the gate with this ptxas.
pub(crate) fn run(ptxas: &Path) -> Result<(), String> {
    let folder = std::env::temp_dir().join(format!("trueno-ptxas-{}", std::process::id()));
    std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let checked = check_all(ptxas, &folder);
    let removed = std::fs::remove_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()));
    checked.and(removed)
}

fn check_all(ptxas: &Path, folder: &Path) -> Result<(), String> {
    println!("{:<40} {:>6} {:>9} {:>6} {:>8}", "kernel", "target", "registers", "spills", "shared");
    let mut failures = Vec::new();
    for (shape, kernel) in kernels::shapes() {
        let budget = kernel.budget();
        for (major, minor) in CAPABILITIES {
            let target = Target::for_capability(major, minor).ok_or("a compute capability has no target")?;
            // Made for another target: it may use instructions or memory that this one lacks.
            if target.sm < kernel.ir().target.sm || kernel.shared_bytes() > target.max_shared_bytes() as usize {
                println!("{shape:<40} {:>6} is left out: made for larger targets", format!("sm_{major}{minor}"));
                continue;
            }
            let usage = assemble(ptxas, folder, kernel.as_ref(), target)?;
            let shared_bytes = kernel.shared_bytes();
            let name = format!("sm_{major}{minor}");
            println!("{shape:<40} {name:>6} {:>9} {:>6} {shared_bytes:>8}", usage.registers, usage.spilled_bytes);
            if usage.registers > budget.registers || usage.spilled_bytes > 0 {
                failures
                    .push(format!("{shape} on {name} exceeds its budget of {} registers or spills", budget.registers));
            }
            if shared_bytes > budget.shared_bytes as usize {
                failures.push(format!("{shape} exceeds its budget of {} bytes of shared memory", budget.shared_bytes));
            }
        }
    }
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n")) }
}

fn assemble(ptxas: &Path, folder: &Path, kernel: &dyn Kernel, target: Target) -> Result<Usage, String> {
    let (source, object) = (folder.join("kernel.ptx"), folder.join("kernel.cubin"));
    let ptx = kernel.emit_ptx_for(target).map_err(|e| e.to_string())?;
    std::fs::write(&source, ptx).map_err(|e| format!("{}: {e}", source.display()))?;
    let output = Command::new(ptxas)
        .args(["-v", &format!("-arch=sm_{}", target.sm), "-o"])
        .args([&object, &source])
        .output()
        .map_err(|e| format!("{}: {e} (set TRUENO_PTXAS to the path of ptxas)", ptxas.display()))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(format!("{} for sm_{}: {said}", kernel.name(), target.sm));
    }
    let registers =
        number_before(&said, " registers").ok_or_else(|| format!("ptxas did not report registers: {said}"))?;
    let spilled = |what: &str| number_before(&said, what).ok_or_else(|| format!("ptxas did not report spills: {said}"));
    let (stores, loads) = (spilled(" bytes spill stores")?, spilled(" bytes spill loads")?);
    Ok(Usage { registers, spilled_bytes: stores + loads })
}

/// Returns the number directly before the first `unit`.
fn number_before(text: &str, unit: &str) -> Option<u32> {
    let before = &text[..text.find(unit)?];
    before.rsplit(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}
