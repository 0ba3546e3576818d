//! Every instruction, in every form that the builder emits, passes the vendor's assembler for every target.

mod support;

use support::assemble;
use trueno_gpu::inst::Op;
use trueno_gpu::ir::{AtomOp, Few, Inst, KernelIr, LoadHint, Operand, ReduxOp, RegId, RegInfo, Stmt, StoreHint};
use trueno_gpu::{Element, KernelBuilder, RegClass, Target};

/// All rows of the table in one kernel. With `constant`, the last source is a constant.
fn every_op(constant: bool) -> KernelIr {
    let k = KernelBuilder::new("every_op");
    let out = k.param_ptr::<u32>("out");
    let (word, wide) = (k.lane_id(), k.param_u64("wide"));
    let flag = word.lt(3u32);
    let _ = (out, word, wide, flag);
    let mut kernel = k.finish().expect("a few values").into_ir();
    let ids = [(RegClass::B32, 1), (RegClass::B64, 2), (RegClass::Pred, 3)];
    let reg_of = |class| RegId(ids.iter().find(|(c, _)| *c == class).expect("all classes").1);
    let out = RegId(0);
    for &op in Op::ALL {
        let (class, sources) = op.lanes().signature();
        let mut args: Vec<Operand> = sources.iter().map(|c| Operand::Reg(reg_of(*c))).collect();
        let last = args.len() - 1;
        // The compiler folds conversions and counts of a constant, and PTX has predicate constants in moves only.
        let takes_constant = last > 0 && sources[last] != RegClass::Pred || op == Op::Mov32 || op == Op::MovPred;
        if op == Op::Lop3 || constant && takes_constant {
            args[last] = Operand::Imm(0x1f);
        }
        let dst = RegId(u32::try_from(kernel.regs.len()).expect("few"));
        kernel.regs.push(RegInfo { class, name: None, mutable: false });
        let inst = match (class, sources[0]) {
            (RegClass::Pred, RegClass::B32 | RegClass::B64) => {
                Inst::Setp { op, dst, a: args[0], b: args[1], combine: None }
            }
            _ => Inst::Pure { op, dst, args: Few::from_slice(&args) },
        };
        kernel.body.push(Stmt::Inst { inst, guard: None });
        // Stored, so that the assembler does not remove it as unused.
        let (src, ty) = match class {
            RegClass::B32 => (dst, trueno_gpu::MemTy::U32),
            RegClass::B64 => (dst, trueno_gpu::MemTy::U64),
            RegClass::Pred => {
                let chosen = RegId(dst.0 + 1);
                kernel.regs.push(RegInfo { class: RegClass::B32, name: None, mutable: false });
                let args = Few::from([Operand::Imm(1), Operand::Imm(0), Operand::Reg(dst)]);
                kernel.body.push(Stmt::Inst { inst: Inst::Pure { op: Op::Selp32, dst: chosen, args }, guard: None });
                (chosen, trueno_gpu::MemTy::U32)
            }
        };
        let addr = trueno_gpu::ir::MemAddr {
            space: trueno_gpu::StateSpace::Global,
            base: out,
            offset: i32::from(op as u8) * 8,
        };
        let store = Inst::Store {
            src: Few::from([Operand::Reg(src)]),
            ty,
            addr,
            hint: StoreHint::Default,
            conflict: Default::default(),
        };
        kernel.body.push(Stmt::Inst { inst: store, guard: None });
    }
    kernel
}

#[test]
fn pure_instructions() {
    for constant in [false, true] {
        let kernel = trueno_gpu::validate::validate(every_op(constant)).expect("well formed");
        assemble(&kernel);
    }
}

#[test]
fn constants_on_either_side() {
    let k = KernelBuilder::new("constants");
    let out = k.param_ptr::<u32>("out").index(k.thread_id());
    let lane = k.lane_id();
    let p = k.var(true);
    p.set(p & lane.as_i32().gt(-3));
    k.when(*p).set(p, false);
    out.store(31u32 - lane);
    out.at(1).store(1u32 << lane);
    out.at(2).store(k.value(0xfffu32).bit_select(lane, 0x1234_5000u32));
    out.at(3).store((lane.to_f32() + 0.5).rcp_approx().to_u32());
    out.at(4).store(p.to_u32());
    out.at(5).store((lane.to_u64() * 0x1_0000_0001).hi());
    out.at(6).store(lane.pack(7u32).shfl(3u32).lo());
    out.byte_offset(32).store_vec([0u32, 1, 2, 3]);
    out.at(12).store((lane.as_i32() - 5).max(-1).as_u32());
    assemble(&k.finish().expect("valid"));
}

fn widths<E: Element>(k: &KernelBuilder, name: &str, vectors: bool) {
    let global = k.param_ptr::<E>(name).index(k.lane_id());
    let shared = k.shared_per_block(name, 1024, 16).base::<E>().index(k.lane_id());
    let value = global.load();
    shared.store(value);
    k.sync_warp();
    global.at(1).store(shared.load());
    let is_first = k.lane_id().eq(0);
    for hint in [LoadHint::NonCoherent, LoadHint::Volatile] {
        let [loaded] = global.load_vec_with(hint);
        k.when(is_first).store_vec_with(StoreHint::Volatile, global, [loaded]);
    }
    if vectors {
        let pair = global.load_vec::<2>();
        shared.store_vec(pair);
        global.store_vec(shared.load_vec::<2>());
        let p = k.lane_id().lt(5u32);
        let vars = [k.var_arbitrary(), k.var_arbitrary()];
        k.when(p).load_vec_with(LoadHint::NonCoherent, vars, global);
        k.when(p).store_vec(global, vars);
    }
}

#[test]
fn loads_and_stores() {
    let k = KernelBuilder::new("accesses");
    widths::<u8>(&k, "u8s", true);
    widths::<u16>(&k, "u16s", true);
    widths::<i16>(&k, "i16s", true);
    widths::<u32>(&k, "u32s", true);
    widths::<u64>(&k, "u64s", true);
    let words = k.param_ptr::<u32>("words");
    let loaded = words.load_vec_with::<4>(LoadHint::NonCoherent);
    words.at(4).store_vec(loaded);
    words.at(8).store(words.load_uniform());
    assemble(&k.finish().expect("valid"));
}

#[test]
fn atomics() {
    let k = KernelBuilder::new("atomics");
    let global = k.param_ptr::<u32>("global");
    let shared = k.shared_per_block("shared", 4, 4).base::<u32>();
    let (old, p) = (k.var(1u32), k.lane_id().lt(9u32));
    for op in [AtomOp::Add, AtomOp::Or] {
        global.at(2).store(global.atomic(op, 1u32));
        global.at(2).store(shared.atomic(op, *old));
        k.when(p).atomic(old, global, op, 1u32);
        global.reduce(op, 1u32);
        shared.reduce(op, *old);
        k.when(p).reduce(shared, op, 1u32);
    }
    assemble(&k.finish().expect("valid"));
}

#[test]
fn warp_operations() {
    let k = KernelBuilder::new("warp_ops").with_warps_per_block(4);
    let out = k.param_ptr::<u32>("out").index(k.thread_id());
    let lane = k.lane_id();
    let p = lane.lt(7u32);
    let masks = [k.lanemask_eq(), k.lanemask_le(), k.lanemask_lt(), k.lanemask_gt()];
    let sum = masks.into_iter().fold(lane, |a, b| a ^ b);
    let (down, in_range) = lane.shfl_down_checked(3);
    let (up, in_range_up) = lane.shfl_up_checked(3);
    let votes = p.any() & !p.all();
    let values = [
        sum,
        (!p).ballot(),
        lane.shfl(lane + 1),
        down + up,
        (in_range & in_range_up).to_u32(),
        lane.shfl_xor(16) + lane.shfl_up(2),
        lane.match_any(),
        votes.to_u32(),
        k.block_count() + k.block_threads() + k.block_id() + k.warp_id(),
    ];
    for (i, v) in (0..).zip(values) {
        out.at(i).store(v);
    }
    k.sync_warp();
    k.sync_block();
    assemble(&k.finish().expect("valid"));
}

#[test]
fn warp_reductions() {
    let k = KernelBuilder::new("redux").with_target(Target::SM_80);
    let out = k.param_ptr::<u32>("out").index(k.thread_id());
    let lane = k.lane_id();
    for op in [ReduxOp::Add, ReduxOp::Max, ReduxOp::Or] {
        out.store(lane.redux(op));
    }
    assemble(&k.finish().expect("valid"));
}

#[test]
fn control_flow() {
    let k = KernelBuilder::new("control").with_min_blocks_per_sm(1);
    let out = k.param_ptr::<u32>("out").index(k.thread_id());
    let (n, lane) = (k.param_u32("n"), k.lane_id());
    let (i, v) = (k.var(0u32), k.var(lane));
    k.loop_uniform(|outer| {
        i.set(i + 1);
        outer.break_if(i.gt(n));
        k.block_uniform(|b| {
            b.exit_if(v.eq(9u32).any());
            k.loop_uniform(|inner| {
                i.set(i + 3);
                outer.continue_if(i.eq(7u32));
                outer.break_if(i.eq(8u32));
                inner.break_if(i.gt(20u32));
            });
            k.if_else_uniform(i.gt(30u32), || v.set(v + 1), || b.exit());
            v.set(v + 2);
        });
        k.while_uniform(|| i.lt(40u32), || i.set(i + 1));
        k.do_while_uniform(|| {
            i.set(i + 1);
            i.lt(50u32)
        });
    });
    k.loop_(|l| {
        k.if_else(v.eq(lane), || l.break_now(), || v.set(v + 1));
        l.continue_if(v.lt(10u32));
        v.set(lane);
    });
    k.block(|b| {
        b.exit_if(v.eq(3u32));
        k.if_(lane.gt(2u32), || out.store(1));
    });
    out.at(1).store(v);
    assemble(&k.finish().expect("valid"));
}

#[test]
fn shared_memory_static_and_dynamic() {
    for (warps, target) in [(4, Target::SM_70), (8, Target::SM_70), (28, Target::SM_90)] {
        let k = KernelBuilder::new("shared").with_warps_per_block(warps).with_target(target);
        let warp = k.warp_id();
        let page = k.shared_per_warp("page", 4096, 4096).base::<u32>(warp);
        let table = k.shared_per_warp("table", 4096, 4096).base::<u16>(warp);
        let lane = k.lane_id();
        page.index(lane).store(lane);
        k.sync_warp();
        let entry = (page.raw() | lane << 2).shared::<u32>().load();
        table.index(entry).store_conflicting(lane);
        k.sync_warp();
        k.param_ptr::<u32>("out").index(lane).store(table.at(2047).load());
        let kernel = k.finish().expect("valid");
        assert_eq!(kernel.shared.dynamic, warps > 5);
        assert_eq!(kernel.shared.bytes, warps * 8192);
        // 28 warps of 8 KiB, and the 3 KiB that alignment costs, use all shared memory of an H100's SM.
        assert_eq!(kernel.shared.total_bytes(), warps * 8192 + 3072);
        assemble(&kernel);
    }
}
