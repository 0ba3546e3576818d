//! Writes PTX text from the IR. Only this module spells PTX or makes labels.

mod names;
mod operand;

use crate::inst::Op;
use crate::ir::shared::GRANTED_ALIGN;
use crate::ir::{
    AtomOp, BoolOp, Branch, Inst, KernelIr, LabelId, LoadHint, Operand, ParamTy, PredUse, ReduxOp, ShflMode, Stmt,
    StoreHint, VoteMode, loop_tail_test,
};
use crate::target::Target;
use crate::types::{MemTy, RegClass, StateSpace};
use crate::validate::{ValidKernel, ValidateError};
use names::Names;
use std::fmt::Write as _;

/// Name of the array that holds all regions.
const SHARED_SYMBOL: &str = "shared_memory";

/// A register for the unused half of an unpacked number, since `_` is newer than the default PTX version.
const LOW_HALF_SINK: &str = "%low";

/// The member mask of warp operations and warp barriers.
const ALL_LANES: &str = "0xFFFFFFFF";

/// Writes the kernel as PTX text for its own target.
///
/// ```
/// let kernel = trueno_gpu::KernelBuilder::new("nothing").finish()?;
/// let ptx = trueno_gpu::emit(&kernel);
/// assert!(ptx.starts_with(".version 6.4\n.target sm_70\n"));
/// # Ok::<(), trueno_gpu::ValidateError>(())
/// ```
#[must_use]
pub fn emit(kernel: &ValidKernel) -> String {
    Emitter::new(kernel).module(kernel.target)
}

/// Writes the kernel as PTX text for a target.
///
/// # Errors
/// If the target lacks an instruction or the shared memory that the kernel needs.
///
/// ```
/// use trueno_gpu::{emit_for, KernelBuilder, Target};
/// let kernel = KernelBuilder::new("nothing").finish()?;
/// assert!(emit_for(&kernel, Target::SM_90)?.contains(".target sm_90"));
/// # Ok::<(), trueno_gpu::ValidateError>(())
/// ```
pub fn emit_for(kernel: &ValidKernel, target: Target) -> Result<String, ValidateError> {
    kernel.check_target(target)?;
    Ok(Emitter::new(kernel).module(target))
}

struct Emitter<'a> {
    kernel: &'a KernelIr,
    names: Names,
    text: String,
    depth: usize,
    /// Loops and scopes whose end is a jump target.
    used: Vec<LabelId>,
    ifs: u32,
}

/// Appends formatted text; writing to a string cannot fail.
macro_rules! put {
    ($out:expr, $($arg:tt)*) => {
        write!($out, $($arg)*).expect("writing to a string cannot fail")
    };
}

impl<'a> Emitter<'a> {
    fn new(kernel: &'a ValidKernel) -> Self {
        Self { kernel, names: Names::of(kernel), text: String::new(), depth: 1, used: Vec::new(), ifs: 0 }
    }

    fn module(mut self, target: Target) -> String {
        let kernel = self.kernel;
        put!(self.text, ".version {}\n.target sm_{}\n.address_size 64\n\n", target.ptx, target.sm);
        if kernel.shared.dynamic {
            put!(self.text, ".extern .shared .align {GRANTED_ALIGN} .b8 {SHARED_SYMBOL}[];\n\n");
        }
        put!(self.text, ".visible .entry {}(", kernel.name);
        for (i, param) in kernel.params.iter().enumerate() {
            let ty = match param.ty {
                ParamTy::U32 => ".u32",
                ParamTy::U64 | ParamTy::Pointer(_) => ".u64",
            };
            put!(self.text, "{}\n    .param {ty} {}", if i == 0 { "" } else { "," }, param.name);
        }
        self.text += if kernel.params.is_empty() { ")\n" } else { "\n)\n" };
        put!(self.text, ".maxntid {}, 1, 1\n", kernel.warps_per_block * 32);
        if let Some(blocks) = kernel.min_blocks_per_sm {
            put!(self.text, ".minnctapersm {blocks}\n");
        }
        self.text += "{\n";
        self.shared();
        self.text += &self.names.declarations();
        if unpacks(&kernel.body) {
            put!(self.text, "    .reg .b32 {LOW_HALF_SINK};\n");
        }
        self.text.push('\n');
        self.block(&kernel.body);
        self.text += "    ret;\n}\n";
        self.text
    }

    fn shared(&mut self) {
        let shared = &self.kernel.shared;
        for region in &shared.regions {
            put!(
                self.text,
                "    // shared {}: {} bytes per {} at {}\n",
                region.name,
                region.bytes,
                format!("{:?}", region.scope).to_lowercase(),
                region.offset
            );
        }
        if shared.bytes > 0 && !shared.dynamic {
            let (align, bytes) = (shared.align.min(GRANTED_ALIGN), shared.total_bytes());
            put!(self.text, "    .shared .align {align} .b8 {SHARED_SYMBOL}[{bytes}];\n");
        }
    }

    fn line(&mut self, text: &str) {
        let indent = self.depth * 4;
        put!(self.text, "{:indent$}{text};\n", "");
    }

    fn label(&mut self, name: &str) {
        let indent = self.depth * 4 - 2;
        put!(self.text, "{:indent$}{name}:\n", "");
    }

    fn nested(&mut self, block: &[Stmt]) {
        self.depth += 1;
        self.block(block);
        self.depth -= 1;
    }

    fn block(&mut self, block: &[Stmt]) {
        for stmt in block {
            self.stmt(stmt);
        }
    }

    fn stmt(&mut self, stmt: &Stmt) {
        match stmt {
            Stmt::Inst { inst, guard } => self.inst(inst, *guard),
            Stmt::Section(title) => {
                let (indent, title) = (self.depth * 4, title.replace(['\n', '\r'], " "));
                put!(self.text, "\n{:indent$}// {title}\n", "");
            }
            Stmt::If { cond, branch, then, otherwise } => {
                let n = self.ifs;
                self.ifs += 1;
                let (end, other) = (format!("$end_{n}"), format!("$else_{n}"));
                self.branch(Some(!*cond), *branch, if otherwise.is_empty() { &end } else { &other });
                self.nested(then);
                if !otherwise.is_empty() {
                    if !never_falls_through(then) {
                        self.branch(None, *branch, &end);
                    }
                    self.label(&other);
                    self.nested(otherwise);
                }
                self.label(&end);
            }
            Stmt::Loop { label, branch, body } => {
                let start = start_label(*label);
                self.label(&start);
                match (loop_tail_test(*label, body), body.split_last()) {
                    (Some(again), Some((_, rest))) => {
                        self.nested(rest);
                        self.branch(Some(again), *branch, &start);
                    }
                    _ => {
                        self.nested(body);
                        if !never_falls_through(body) {
                            self.branch(None, *branch, &start);
                        }
                    }
                }
                self.end_label(*label);
            }
            Stmt::Scope { label, body } => {
                self.nested(body);
                self.end_label(*label);
            }
            Stmt::Break { target, cond, branch } => {
                if !self.used.contains(target) {
                    self.used.push(*target);
                }
                self.branch(*cond, *branch, &end_label_name(*target));
            }
            Stmt::Continue { target, cond, branch } => self.branch(*cond, *branch, &start_label(*target)),
        }
    }

    fn end_label(&mut self, label: LabelId) {
        if self.used.contains(&label) {
            self.label(&end_label_name(label));
        }
    }

    fn branch(&mut self, cond: Option<PredUse>, branch: Branch, to: &str) {
        let uni = match branch {
            Branch::Uniform => ".uni",
            Branch::Divergent => "",
        };
        let text = format!("{}bra{uni} {to}", self.guard(cond));
        self.line(&text);
    }

    fn guard(&self, guard: Option<PredUse>) -> String {
        guard.map_or_else(String::new, |p| format!("@{} ", self.pred(p)))
    }

    fn inst(&mut self, inst: &Inst, guard: Option<PredUse>) {
        let guard = self.guard(guard);
        for text in self.spell(inst) {
            self.line(&format!("{guard}{text}"));
        }
    }

    /// Returns the lines of an instruction, usually one.
    fn spell(&self, inst: &Inst) -> Vec<String> {
        let name = inst.info().ptx_name;
        let one = |text: String| vec![text];
        match inst {
            Inst::Arbitrary { .. } => Vec::new(),
            Inst::Pure { op: Op::HighHalf, dst, args } => {
                let source = self.operand(args[0], RegClass::B64, name);
                one(format!("{name} {{{LOW_HALF_SINK}, {}}}, {source}", self.reg(*dst)))
            }
            Inst::Pure { op: Op::Pack, dst, args } => {
                let [lo, hi] = [args[0], args[1]].map(|v| self.operand(v, RegClass::B32, "b32"));
                one(format!("{name} {}, {{{lo}, {hi}}}", self.reg(*dst)))
            }
            Inst::Pure { op: Op::Lop3, dst, args } => {
                let [a, b, c] = [args[0], args[1], args[2]].map(|v| self.operand(v, RegClass::B32, name));
                let Operand::Imm(table) = args[3] else { unreachable!("the validator requires a constant") };
                one(format!("{name} {}, {a}, {b}, {c}, 0x{table:02X}", self.reg(*dst)))
            }
            Inst::Pure { op, dst, args } => {
                let classes = op.lanes().signature().1;
                let args: Vec<_> = args.iter().zip(classes).map(|(v, class)| self.operand(*v, *class, name)).collect();
                one(format!("{name} {}, {}", self.reg(*dst), args.join(", ")))
            }
            Inst::Setp { op, dst, a, b, combine } => {
                let class = op.lanes().signature().1[0];
                let (a, b) = (self.operand(*a, class, name), self.operand(*b, class, name));
                let dst = self.reg(*dst);
                one(match combine {
                    None => format!("{name} {dst}, {a}, {b}"),
                    Some(combine) => {
                        let (compare, ty) = name.rsplit_once('.').expect("the name of a comparison ends in its type");
                        let with = match combine.op {
                            BoolOp::And => "and",
                            BoolOp::Or => "or",
                            BoolOp::Xor => "xor",
                        };
                        format!("{compare}.{with}.{ty} {dst}, {a}, {b}, {}", self.pred(combine.with))
                    }
                })
            }
            Inst::Special { dst, reg } => one(format!("{name} {}, {}", self.reg(*dst), reg.ptx_name())),
            Inst::Param { dst, index } => {
                let (param, dst) = (&self.kernel.params[*index as usize], self.reg(*dst));
                match param.ty {
                    ParamTy::U32 => one(format!("{name}.u32 {dst}, [{}]", param.name)),
                    ParamTy::U64 => one(format!("{name}.u64 {dst}, [{}]", param.name)),
                    ParamTy::Pointer(_) => {
                        vec![format!("{name}.u64 {dst}, [{}]", param.name), format!("cvta.to.global.u64 {dst}, {dst}")]
                    }
                }
            }
            Inst::SharedBase { dst, region } => self.shared_base(&self.reg(*dst), *region),
            Inst::Load { dst, ty, addr, hint, .. } => {
                let regs: Vec<_> = dst.iter().map(|r| self.reg(*r)).collect();
                let (before, after) = match hint {
                    LoadHint::Default => ("", ""),
                    LoadHint::NonCoherent => ("", ".nc"),
                    LoadHint::Volatile => (".volatile", ""),
                };
                let (space, vector) = (space(addr.space), vector(regs.len()));
                one(format!("{name}{before}{space}{after}{vector}.{} {}, {}", mem(*ty), group(&regs), self.addr(*addr)))
            }
            Inst::Store { src, ty, addr, hint, .. } => {
                let values: Vec<_> = src.iter().map(|v| self.operand(*v, ty.class(), mem(*ty))).collect();
                let volatile = match hint {
                    StoreHint::Default => "",
                    StoreHint::Volatile => ".volatile",
                };
                let (space, vector) = (space(addr.space), vector(values.len()));
                one(format!("{name}{volatile}{space}{vector}.{} {}, {}", mem(*ty), self.addr(*addr), group(&values)))
            }
            Inst::Atomic { dst, op, addr, value } => {
                let op = match op {
                    AtomOp::Add => "add.u32",
                    AtomOp::Or => "or.b32",
                };
                let old = dst.map_or_else(String::new, |dst| format!("{}, ", self.reg(dst)));
                let (addr, space) = (self.addr(*addr), space(addr.space));
                one(format!("{name}{space}.{op} {old}{addr}, {}", self.operand(*value, RegClass::B32, op)))
            }
            _ => one(self.spell_warp(inst, name)),
        }
    }

    fn spell_warp(&self, inst: &Inst, name: &str) -> String {
        let word = |v| self.operand(v, RegClass::B32, "b32");
        match inst {
            Inst::Shfl { mode, dst, in_range, src, lane } => {
                let range = in_range.map_or_else(String::new, |p| format!("|{}", self.reg(p)));
                // `up` compares with the lowest source lane, the others with the highest.
                let clamp = if *mode == ShflMode::Up { 0 } else { 31 };
                format!("{name} {}{range}, {}, {}, {clamp}, {ALL_LANES}", self.reg(*dst), word(*src), word(*lane))
            }
            Inst::Vote { mode, dst, src } => {
                let mode = match mode {
                    VoteMode::Any => "any",
                    VoteMode::All => "all",
                };
                format!("{name}.{mode}.pred {}, {}, {ALL_LANES}", self.reg(*dst), self.pred(*src))
            }
            Inst::Ballot { dst, src } => format!("{name} {}, {}, {ALL_LANES}", self.reg(*dst), self.pred(*src)),
            Inst::MatchAny { dst, src } => format!("{name} {}, {}, {ALL_LANES}", self.reg(*dst), word(*src)),
            Inst::Redux { op, dst, src } => {
                let op = match op {
                    ReduxOp::Add => "add.u32",
                    ReduxOp::Max => "max.u32",
                    ReduxOp::Or => "or.b32",
                };
                format!("{name}.{op} {}, {}, {ALL_LANES}", self.reg(*dst), word(*src))
            }
            Inst::BarWarp => format!("{name} {ALL_LANES}"),
            Inst::BarBlock => format!("{name} 0"),
            _ => unreachable!("the caller handles all other instructions"),
        }
    }

    /// Aligns shared memory where the driver does not align it enough.
    fn shared_base(&self, dst: &str, region: crate::ir::RegionId) -> Vec<String> {
        let shared = &self.kernel.shared;
        let mut lines = vec![format!("mov.u32 {dst}, {SHARED_SYMBOL}")];
        if shared.align > GRANTED_ALIGN {
            lines.push(format!("add.u32 {dst}, {dst}, {}", shared.align - 1));
            lines.push(format!("and.b32 {dst}, {dst}, -{}", shared.align));
        }
        let offset = shared.regions[region.0 as usize].offset;
        if offset > 0 {
            lines.push(format!("add.u32 {dst}, {dst}, {offset}"));
        }
        lines
    }
}

fn unpacks(block: &[Stmt]) -> bool {
    block.iter().any(|stmt| {
        matches!(stmt, Stmt::Inst { inst: Inst::Pure { op: Op::HighHalf, .. }, .. })
            || stmt.blocks().any(|b| unpacks(b))
    })
}

fn never_falls_through(block: &[Stmt]) -> bool {
    matches!(block.last(), Some(Stmt::Break { cond: None, .. } | Stmt::Continue { cond: None, .. }))
}

fn start_label(label: LabelId) -> String {
    format!("$loop_{}", label.0)
}

fn end_label_name(label: LabelId) -> String {
    format!("$exit_{}", label.0)
}

const fn space(space: StateSpace) -> &'static str {
    match space {
        StateSpace::Global => ".global",
        StateSpace::Shared => ".shared",
    }
}

const fn mem(ty: MemTy) -> &'static str {
    match ty {
        MemTy::U8 => "u8",
        MemTy::U16 => "u16",
        MemTy::I16 => "s16",
        MemTy::U32 => "u32",
        MemTy::U64 => "u64",
    }
}

const fn vector(count: usize) -> &'static str {
    match count {
        2 => ".v2",
        4 => ".v4",
        _ => "",
    }
}

/// Writes `{a, b}`, or `a` alone.
fn group(items: &[String]) -> String {
    match items {
        [one] => one.clone(),
        _ => format!("{{{}}}", items.join(", ")),
    }
}
