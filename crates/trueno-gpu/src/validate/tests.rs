//! One kernel for each rule that can be broken.

use super::*;
use crate::builder::KernelBuilder;
use crate::inst::Op;
use crate::ir::{Branch, Few, KernelIr, LabelId, LoadHint, Operand, PredUse, ReduxOp, RegId};
use crate::target::PtxVersion;
use crate::types::RegClass;

fn refused(k: KernelBuilder) -> ValidateError {
    k.finish().expect_err("the kernel breaks a rule")
}

/// Changes a valid kernel into one that the builder would not make, and validates it.
fn broken(k: KernelBuilder, change: impl FnOnce(&mut KernelIr)) -> ValidateError {
    let mut kernel = k.finish().expect("valid before the change").into_ir();
    change(&mut kernel);
    validate(kernel).expect_err("the change breaks a rule")
}

fn inst(kernel: &mut KernelIr, i: usize) -> &mut Inst {
    match &mut kernel.body[i] {
        Stmt::Inst { inst, .. } => inst,
        other => panic!("not an instruction: {other:?}"),
    }
}

#[test]
fn register_of_another_kernel() {
    let (k, other) = (KernelBuilder::new("k"), KernelBuilder::new("other"));
    let foreign = other.lane_id();
    k.if_uniform(k.param_u32("n").eq(0), || {
        let _ = k.value(foreign);
    });
    let error = refused(k);
    assert!(
        matches!(&error, ValidateError::ForeignRegister { path, .. } if path.to_string() == "body[2].then[0]"),
        "{error}"
    );
}

#[test]
fn undeclared_register() {
    let k = KernelBuilder::new("k");
    let _ = k.lane_id() + 1;
    let error = broken(k, |kernel| kernel.regs.truncate(1));
    assert!(matches!(error, ValidateError::UnknownRegister { reg: RegId(1), .. }), "{error}");
}

#[test]
fn wrong_class() {
    let k = KernelBuilder::new("k");
    let _ = k.lane_id() + 1;
    let error = broken(k, |kernel| kernel.regs[0].class = RegClass::B64);
    assert!(
        matches!(error, ValidateError::ClassMismatch { expected: RegClass::B32, found: RegClass::B64, .. }),
        "{error}"
    );
}

#[test]
fn value_assigned_twice() {
    let k = KernelBuilder::new("k");
    let _ = k.lane_id().named("lane");
    let error = broken(k, |kernel| kernel.body.push(kernel.body[0].clone()));
    let ValidateError::Reassigned { path, reg } = error else { panic!("{error}") };
    assert_eq!((path.to_string().as_str(), reg.as_str()), ("body[1]", "`lane`"));
}

#[test]
fn value_assigned_under_a_guard() {
    let k = KernelBuilder::new("k");
    let p = k.lane_id().lt(3);
    let _ = k.lane_id();
    let guard = Some(p.pred_use());
    let error = broken(k, |kernel| {
        let Stmt::Inst { guard: g, .. } = &mut kernel.body[2] else { panic!("the lane") };
        *g = guard;
    });
    assert!(matches!(error, ValidateError::GuardedValue { .. }), "{error}");
}

#[test]
fn value_of_one_branch_read_after_it() {
    let k = KernelBuilder::new("k");
    let mut inner = None;
    k.if_(k.lane_id().lt(3), || inner = Some(k.lane_id().named("inner")));
    let _ = inner.expect("set above") + 1;
    let error = refused(k);
    let ValidateError::Unassigned { path, reg } = error else { panic!("{error}") };
    assert_eq!((path.to_string().as_str(), reg.as_str()), ("body[3]", "`inner`"));
}

#[test]
fn value_read_after_a_loop_that_may_skip_it() {
    let skipping = |skip: bool| {
        let k = KernelBuilder::new("k");
        let (n, mut inner) = (k.param_u32("n"), None);
        k.loop_uniform(|l| {
            if skip {
                l.break_if(n.eq(0));
            }
            inner = Some(k.lane_id());
            l.break_if(n.eq(1));
        });
        let _ = inner.expect("set above") + 1;
        k.finish().is_ok()
    };
    assert!(!skipping(true));
    assert!(skipping(false));
}

#[test]
fn lane_dependent_condition() {
    let k = KernelBuilder::new("k");
    let lane = k.lane_id().named("lane");
    let low = (lane + 3).named("sum").lt(7).named("low");
    k.while_uniform(|| low, || {});
    let error = refused(k);
    let ValidateError::NotUniform { path, chain } = error else { panic!("{error}") };
    assert_eq!(path.to_string(), "body[3].loop[0]");
    assert_eq!(chain, "`low` <- `sum` <- `lane` (%laneid)");
}

#[test]
fn variable_changed_under_a_lane_dependent_guard() {
    let k = KernelBuilder::new("k");
    let p = k.lane_id().named("lane").lt(3).named("p");
    let v = k.var(0u32).named("v");
    k.loop_uniform(|l| {
        l.break_if(v.gt(3));
        k.when(p).set(v, 9u32);
    });
    let error = refused(k);
    assert!(error.to_string().contains("<- `v` <- guarded by `p` <- `lane` (%laneid)"), "{error}");
}

#[test]
fn variable_changed_under_divergent_control_flow() {
    let k = KernelBuilder::new("k");
    let v = k.var(0u32).named("v");
    k.if_(k.lane_id().lt(3), || v.set(1));
    k.if_uniform(v.eq(1), || {});
    let error = refused(k);
    assert!(error.to_string().contains("assigned under divergent control flow at body[3].then[0]"), "{error}");
}

#[test]
fn uniform_jump_under_a_divergent_if() {
    let k = KernelBuilder::new("k");
    k.loop_uniform(|l| {
        k.if_(k.lane_id().lt(3), || l.break_now());
    });
    assert!(matches!(refused(k), ValidateError::NotUniform { .. }));
}

#[test]
fn divergent_jump_out_of_a_uniform_loop() {
    let k = KernelBuilder::new("k");
    k.loop_uniform(|l| l.break_if(k.lane_id().lt(3).any()));
    let error = broken(k, |kernel| {
        let Stmt::Loop { body, .. } = &mut kernel.body[0] else { panic!("the loop") };
        let Some(Stmt::Break { branch, .. }) = body.last_mut() else { panic!("the break") };
        *branch = Branch::Divergent;
    });
    assert!(matches!(error, ValidateError::DivergentBarrier { .. } | ValidateError::NotUniform { .. }), "{error}");
}

#[test]
fn uniform_load_through_a_lanes_own_address() {
    let k = KernelBuilder::new("k");
    let _ = k.param_ptr::<u32>("input").index(k.lane_id()).load_uniform();
    assert!(matches!(refused(k), ValidateError::NotUniform { .. }));
}

#[test]
fn shuffle_by_a_lanes_own_index_is_not_uniform() {
    let k = KernelBuilder::new("k");
    let lane = k.lane_id();
    k.if_uniform(lane.shfl(lane).eq(0), || {});
    assert!(matches!(refused(k), ValidateError::NotUniform { .. }));
}

#[test]
fn uniform_sources_are_accepted() {
    let k = KernelBuilder::new("k").with_warps_per_block(2);
    let (n, sizes) = (k.param_u32("n"), k.param_ptr::<u32>("sizes"));
    let lane = k.lane_id();
    let chosen = lane.shfl(lane.lt(n).ballot().bfind());
    let uniform = [
        n.eq(3),
        k.block_id().lt(k.block_count()),
        lane.lt(3).any(),
        lane.lt(3).ballot().eq(7),
        chosen.gt(2),
        k.warp_id().eq(1),
        sizes.index(k.block_id()).load_uniform().ne(0),
    ];
    let v = k.var(0u32);
    for p in uniform {
        k.if_uniform(p, || v.set(v + chosen));
    }
    k.when(lane.lt(5).any()).set(v, v + 2);
    k.if_uniform(v.gt(1), || k.sync_warp());
    k.finish().expect("all of these are uniform");
}

#[test]
fn barriers_under_divergent_control_flow() {
    let ways: [fn(&KernelBuilder); 5] = [
        |k| k.sync_warp(),
        |k| k.sync_block(),
        |k| {
            let _ = k.lane_id().shfl(0);
        },
        |k| {
            let _ = k.lane_id().lt(1).ballot();
        },
        |k| {
            let _ = k.lane_id().match_any();
        },
    ];
    for way in ways {
        let k = KernelBuilder::new("k");
        k.if_(k.lane_id().lt(3), || way(&k));
        let error = refused(k);
        assert!(matches!(error, ValidateError::DivergentBarrier { .. }), "{error}");

        let k = KernelBuilder::new("k");
        k.loop_(|l| {
            l.break_if(k.lane_id().ge(3));
            way(&k);
        });
        let error = refused(k);
        assert!(matches!(error, ValidateError::DivergentBarrier { .. }), "{error}");
    }
}

#[test]
fn block_barrier_needs_more_than_a_warps_agreement() {
    let k = KernelBuilder::new("k").with_warps_per_block(2);
    k.if_uniform(k.warp_id().eq(0), || k.sync_block());
    assert!(matches!(refused(k), ValidateError::DivergentBarrier { inst: "bar.sync", .. }));

    let k = KernelBuilder::new("k").with_warps_per_block(2);
    k.if_uniform(k.param_u32("n").eq(0), || k.sync_block());
    k.finish().expect("all warps agree on a parameter");
}

#[test]
fn misaligned_constant_offsets() {
    let k = KernelBuilder::new("k");
    let _ = k.param_ptr::<u32>("input").byte_offset(6).load();
    assert!(matches!(refused(k), ValidateError::MisalignedOffset { offset: 6, bytes: 4, .. }));

    let k = KernelBuilder::new("k");
    k.param_ptr::<u32>("out").at(2).store_vec([0u32; 4]);
    assert!(matches!(refused(k), ValidateError::MisalignedOffset { offset: 8, bytes: 16, .. }));

    let k = KernelBuilder::new("k");
    let odd = (k.shared_per_block("bytes", 64, 16).base::<u8>().raw() + 1).shared::<u16>();
    let _ = odd.load();
    assert!(matches!(refused(k), ValidateError::MisalignedOffset { offset: 1, bytes: 2, .. }));
}

#[test]
fn region_aligned_to_less_than_the_access() {
    let k = KernelBuilder::new("k");
    k.shared_per_block("bytes", 64, 4).base::<u32>().store_vec([0u32; 4]);
    assert!(matches!(refused(k), ValidateError::RegionAlignment { align: 4, bytes: 16, .. }));
}

#[test]
fn constant_offset_outside_its_region() {
    let k = KernelBuilder::new("k");
    k.shared_per_block("table", 64, 4).base::<u32>().at(16).store(0);
    let error = refused(k);
    assert!(matches!(&error, ValidateError::RegionOverflow { start: 64, end: 68, bytes: 64, .. }), "{error}");

    let k = KernelBuilder::new("k").with_warps_per_block(4);
    let own = k.shared_per_warp("page", 4096, 16).base::<u32>(k.warp_id());
    own.at(1023).store(0);
    (own.raw() - 4).shared::<u32>().store(0);
    own.at(-1).store(0);
    assert!(matches!(refused(k), ValidateError::RegionOverflow { start: -4, end: 0, .. }));
}

#[test]
fn regions_that_cannot_be_placed() {
    let k = KernelBuilder::new("k");
    let _ = k.shared_per_block("odd", 64, 12);
    assert_eq!(refused(k), ValidateError::SharedLayout);

    let k = KernelBuilder::new("k").with_warps_per_block(32);
    let _ = k.shared_per_warp("huge", 0x2000_0000, 16);
    assert_eq!(refused(k), ValidateError::SharedLayout);
}

#[test]
fn more_shared_memory_than_the_target_has() {
    let k = KernelBuilder::new("k");
    let _ = k.shared_per_block("big", 97 * 1024, 16);
    assert!(matches!(refused(k), ValidateError::SharedLimit { limit: 98304, .. }));
}

#[test]
fn instruction_newer_than_the_target() {
    for target in [Target::SM_75, Target { ptx: PtxVersion(6, 4), ..Target::SM_80 }] {
        let k = KernelBuilder::new("k").with_target(target);
        let _ = k.lane_id().redux(ReduxOp::Add);
        let error = refused(k);
        let ValidateError::TargetTooOld { inst, needs_ptx, needs_sm, target: refused_by, .. } = error else {
            panic!("{error}")
        };
        assert_eq!((inst, needs_ptx, needs_sm, refused_by), ("redux.sync", PtxVersion(7, 0), 80, target));
    }
}

#[test]
fn jumps_outside_their_loop() {
    let k = KernelBuilder::new("k");
    let mut leaked = None;
    k.loop_uniform(|l| {
        leaked = Some(l);
        l.break_now();
    });
    leaked.expect("set above").break_now();
    assert!(matches!(refused(k), ValidateError::OutsideTarget { what: "break", .. }));

    let k = KernelBuilder::new("k");
    k.block_uniform(|b| b.exit());
    let error = broken(k, |kernel| {
        let Stmt::Scope { label, body } = &mut kernel.body[0] else { panic!("the scope") };
        body[0] = Stmt::Continue { target: *label, cond: None, branch: Branch::Uniform };
    });
    assert!(matches!(error, ValidateError::OutsideTarget { what: "continue", .. }), "{error}");
}

#[test]
fn label_used_twice() {
    let k = KernelBuilder::new("k");
    k.block_uniform(|_| {});
    k.block_uniform(|_| {});
    let error = broken(k, |kernel| kernel.body[1] = Stmt::Scope { label: LabelId(0), body: vec![] });
    assert!(matches!(error, ValidateError::DuplicateLabel { .. }), "{error}");
}

#[test]
fn operands_that_do_not_exist() {
    let bad = |k, i: usize, change: fn(&mut Inst)| {
        let error = broken(k, |kernel| change(inst(kernel, i)));
        assert!(matches!(error, ValidateError::BadOperand { .. }), "{error}");
    };
    let shared_load = || {
        let k = KernelBuilder::new("k");
        let a = k.shared_per_block("a", 64, 16).base::<u32>();
        a.store(a.load());
        k
    };
    bad(shared_load(), 1, |i| {
        if let Inst::Load { hint, .. } = i {
            *hint = LoadHint::NonCoherent;
        }
    });
    bad(shared_load(), 2, |i| {
        if let Inst::Store { src, .. } = i {
            *src = Few::from([Operand::Imm(0); 3]);
        }
    });
    let lop = || {
        let k = KernelBuilder::new("k");
        let _ = k.lane_id().or3(1u32, 2u32);
        k
    };
    bad(lop(), 1, |i| {
        if let Inst::Pure { args, .. } = i {
            args[3] = args[0];
        }
    });
    bad(lop(), 1, |i| {
        if let Inst::Pure { op, .. } = i {
            *op = Op::AddU32;
        }
    });
    bad(lop(), 0, |i| *i = Inst::Param { dst: RegId(0), index: 1 });
    bad(lop(), 0, |i| *i = Inst::SharedBase { dst: RegId(0), region: crate::ir::RegionId(0) });
}

#[test]
fn names_that_ptx_does_not_take() {
    assert!(matches!(refused(KernelBuilder::new("two words")), ValidateError::BadName { .. }));
    let k = KernelBuilder::new("k");
    let _ = (k.param_u32("n"), k.param_u32("n"));
    assert!(matches!(refused(k), ValidateError::BadName { .. }));
}

#[test]
fn blocks_that_do_not_exist() {
    for warps in [0, 33] {
        let k = KernelBuilder::new("k").with_warps_per_block(warps);
        assert_eq!(refused(k), ValidateError::BlockSize { warps });
    }
}

#[test]
fn guard_on_an_operation_of_all_lanes() {
    let k = KernelBuilder::new("k");
    let p = k.lane_id().lt(3);
    k.sync_warp();
    let guard = PredUse { reg: p.id, negated: false };
    let error = broken(k, |kernel| {
        let Stmt::Inst { guard: g, .. } = &mut kernel.body[2] else { panic!("the barrier") };
        *g = Some(guard);
    });
    assert!(matches!(error, ValidateError::DivergentBarrier { .. }), "{error}");
}
