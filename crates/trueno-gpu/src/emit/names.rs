//! Names of registers: given names where they exist, otherwise numbers by class.

use crate::ir::{Block, KernelIr, RegId, Stmt};
use crate::types::RegClass;
use std::collections::HashSet;

/// The PTX name of each register that the kernel assigns.
pub(super) struct Names {
    names: Vec<String>,
    /// Unnamed registers per class: B32, B64, predicates.
    counts: [usize; 3],
    /// Named registers, with their class.
    given: Vec<(RegClass, String)>,
}

/// Names that PTX uses for its own registers.
fn is_reserved(name: &str) -> bool {
    const TAKEN: [&str; 16] = [
        "tid",
        "ntid",
        "laneid",
        "warpid",
        "nwarpid",
        "ctaid",
        "nctaid",
        "smid",
        "nsmid",
        "gridid",
        "clock",
        "low",
        "total_smem_size",
        "dynamic_smem_size",
        "aggr_smem_size",
        "is_explicit_cluster",
    ];
    const TAKEN_STARTS: [&str; 7] = ["lanemask", "clock", "pm", "envreg", "globaltimer", "reserved_smem", "cluster"];
    // `r5`, `rd5` and `p5` are reserved for unnamed registers.
    let numbered = ["rd", "r", "p"].iter().any(|prefix| {
        name.strip_prefix(prefix).is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit()))
    });
    numbered || TAKEN.contains(&name) || TAKEN_STARTS.iter().any(|start| name.starts_with(start))
}

const fn class_index(class: RegClass) -> usize {
    match class {
        RegClass::B32 => 0,
        RegClass::B64 => 1,
        RegClass::Pred => 2,
    }
}

/// Prefix and type of each class.
const CLASSES: [(&str, &str); 3] = [("r", "b32"), ("rd", "b64"), ("p", "pred")];

impl Names {
    pub(super) fn of(kernel: &KernelIr) -> Self {
        let mut names = Self { names: vec![String::new(); kernel.regs.len()], counts: [0; 3], given: Vec::new() };
        let mut taken = HashSet::new();
        names.assign(&kernel.body, kernel, &mut taken);
        names
    }

    /// Assigns names in the order of first assignment, so that numbers rise down the text.
    fn assign(&mut self, block: &Block, kernel: &KernelIr, taken: &mut HashSet<String>) {
        for stmt in block {
            if let Stmt::Inst { inst, .. } = stmt {
                inst.for_each_def(|id| {
                    if self.names[id.index()].is_empty() {
                        self.names[id.index()] = self.choose(kernel, id, taken);
                    }
                });
            }
            for inner in stmt.blocks() {
                self.assign(inner, kernel, taken);
            }
        }
    }

    fn choose(&mut self, kernel: &KernelIr, id: RegId, taken: &mut HashSet<String>) -> String {
        let info = kernel.reg(id);
        let class = class_index(info.class);
        let Some(given) = &info.name else {
            self.counts[class] += 1;
            return format!("%{}{}", CLASSES[class].0, self.counts[class] - 1);
        };
        let mut base: String = given.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
        if is_reserved(&base) || base.is_empty() {
            base.push('_');
        }
        let mut name = base.clone();
        let mut n = 2;
        while !taken.insert(name.clone()) {
            name = format!("{base}_{n}");
            n += 1;
        }
        let name = format!("%{name}");
        self.given.push((info.class, name.clone()));
        name
    }

    pub(super) fn of_reg(&self, id: RegId) -> &str {
        &self.names[id.index()]
    }

    pub(super) fn declarations(&self) -> String {
        let mut text = String::new();
        for class in [RegClass::Pred, RegClass::B32, RegClass::B64] {
            let (prefix, ty) = CLASSES[class_index(class)];
            let given: Vec<_> = self.given.iter().filter(|(c, _)| *c == class).map(|(_, name)| name.as_str()).collect();
            for names in given.chunks(10) {
                text += &format!("    .reg .{ty} {};\n", names.join(", "));
            }
            let count = self.counts[class_index(class)];
            if count > 0 {
                text += &format!("    .reg .{ty} %{prefix}<{count}>;\n");
            }
        }
        text
    }
}
