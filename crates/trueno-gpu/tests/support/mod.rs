//! Runs the assembler on PTX text, if one is installed.

use std::io::Write as _;
use std::process::{Command, Stdio};
use trueno_gpu::{Target, ValidKernel, emit_for};

/// The supported targets.
pub(crate) const TARGETS: [Target; 8] = [
    Target::SM_70,
    Target::SM_75,
    Target::SM_80,
    Target::SM_86,
    Target::SM_89,
    Target::SM_90,
    Target::SM_100,
    Target::SM_120,
];

/// Assembles the kernel for all targets from its own on that have the shared memory. Without `TRUENO_PTXAS` (the path
/// of the assembler) only emits the text.
pub(crate) fn assemble(kernel: &ValidKernel) {
    for target in
        TARGETS.into_iter().filter(|t| t.sm >= kernel.target.sm && t.max_shared_bytes() >= kernel.shared.total_bytes())
    {
        let target = target.with_ptx(kernel.target.ptx);
        let ptx = emit_for(kernel, target).expect("valid for newer targets too");
        let Ok(ptxas) = std::env::var("TRUENO_PTXAS") else { continue };
        let mut child = Command::new(ptxas)
            .args(["-o", "/dev/null", "-v", &format!("-arch=sm_{}", target.sm), "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("TRUENO_PTXAS is the path of an assembler");
        child.stdin.take().expect("piped").write_all(ptx.as_bytes()).expect("the assembler reads its input");
        let output = child.wait_with_output().expect("the assembler ends");
        let report = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{}, {target}:\n{report}\n{ptx}", kernel.name);
        let spills =
            report.lines().any(|l| l.contains("spill") && !l.contains(" 0 bytes spill stores, 0 bytes spill loads"));
        assert!(!spills, "{}, {target}:\n{report}", kernel.name);
    }
}
