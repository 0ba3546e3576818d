//! The instructions that the builder's expressions become.

use super::KernelBuilder;
use crate::emit::emit;
use crate::ir::{LoadHint, Stmt};

/// Returns the instructions of a kernel, without the frame.
fn lines(k: KernelBuilder) -> Vec<String> {
    let ptx = emit(&k.finish().expect("valid"));
    let body = ptx.split_once("\n\n    ").expect("the frame ends in an empty line").1;
    body.lines().map(|l| l.trim().to_owned()).filter(|l| !l.is_empty() && l != "ret;" && l != "}").collect()
}

#[test]
fn operation_writes_the_variable_it_is_assigned_to() {
    let k = KernelBuilder::new("k");
    let v = k.var(k.lane_id()).named("v");
    v.set(v + 1);
    v.set(v.shfl_up(1));
    assert_eq!(lines(k), ["mov.u32 %v, %laneid;", "add.u32 %v, %v, 1;", "shfl.sync.up.b32 %v, %v, 1, 0, 0xFFFFFFFF;"]);
}

#[test]
fn guarded_assignment_is_one_predicated_instruction() {
    let k = KernelBuilder::new("k");
    let v = k.var(k.lane_id()).named("v");
    let (below, there_is) = v.shfl_up_checked(2);
    k.when(there_is).set(v, v + below);
    k.when(!there_is).set(v, v.max(9));
    let expected = [
        "mov.u32 %v, %laneid;",
        "shfl.sync.up.b32 %r0|%p0, %v, 2, 0, 0xFFFFFFFF;",
        "@%p0 add.u32 %v, %v, %r0;",
        "@!%p0 max.u32 %v, %v, 9;",
    ];
    assert_eq!(lines(k), expected);
}

#[test]
fn old_value_is_kept_where_it_is_still_needed() {
    let k = KernelBuilder::new("k");
    let v = k.var(k.lane_id()).named("v");
    let (old, next) = (v.get(), v + 1);
    v.set(7);
    v.set(v + old + next);
    let text = lines(k);
    assert_eq!(text.iter().filter(|l| l.starts_with("mov.b32 %r")).count(), 1, "{text:#?}");
    assert_eq!(text[2], "add.u32 %r1, %v, 1;");
    assert_eq!(text[3], "mov.b32 %v, 7;");
}

#[test]
fn copy_of_an_unchanged_variable_costs_nothing() {
    let k = KernelBuilder::new("k");
    let v = k.var(k.lane_id()).named("v");
    let out = k.param_ptr::<u32>("out");
    let at = v.shared::<u8>();
    out.store(at.load());
    v.set(v + 1);
    assert_eq!(lines(k)[3], "ld.shared.u8 %r0, [%v];");
}

#[test]
fn address_taken_from_a_variable_stays() {
    let k = KernelBuilder::new("k");
    let v = k.var(k.lane_id()).named("v");
    let at = v.shared::<u8>();
    v.set(v + 1);
    let _ = at.load();
    let expected = ["mov.u32 %v, %laneid;", "mov.b32 %r0, %v;", "add.u32 %v, %v, 1;", "ld.shared.u8 %r1, [%r0];"];
    assert_eq!(lines(k), expected);
}

#[test]
fn compares_combine() {
    let k = KernelBuilder::new("k");
    let lane = k.lane_id().named("lane");
    let hit = lane.lt(9) & lane.gt(3) & lane.ne(5);
    let other = hit | !lane.eq(31);
    let _ = other.ballot();
    let expected = [
        "mov.u32 %lane, %laneid;",
        "setp.lt.u32 %p0, %lane, 9;",
        "setp.gt.and.u32 %p1, %lane, 3, %p0;",
        "setp.ne.and.u32 %p2, %lane, 5, %p1;",
        "setp.ne.or.u32 %p3, %lane, 31, %p2;",
        "vote.sync.ballot.b32 %r0, %p3, 0xFFFFFFFF;",
    ];
    assert_eq!(lines(k), expected);
}

#[test]
fn negation_goes_to_the_place_of_use() {
    let k = KernelBuilder::new("k");
    let v = k.var(0u32).named("v");
    let done = k.var(k.lane_id().lt(3)).named("done");
    k.when(!done).set(v, 1u32);
    let _ = (!done).ballot();
    let _ = (!*done).select(1u32, v);
    let text = lines(k);
    assert!(text.contains(&"@!%done mov.b32 %v, 1;".to_owned()), "{text:#?}");
    assert!(text.contains(&"vote.sync.ballot.b32 %r1, !%done, 0xFFFFFFFF;".to_owned()), "{text:#?}");
    assert!(text.contains(&"selp.b32 %r2, %v, 1, %done;".to_owned()), "{text:#?}");
}

#[test]
fn negation_of_a_variable_is_taken_at_once() {
    let k = KernelBuilder::new("k");
    let v = k.var(0u32).named("v");
    let done = k.var(k.lane_id().lt(3)).named("done");
    let open = !done;
    done.set(true);
    k.when(open).set(v, 1u32);
    let text = lines(k);
    assert!(text.contains(&"not.pred %p0, %done;".to_owned()), "{text:#?}");
    assert!(text.contains(&"@%p0 mov.b32 %v, 1;".to_owned()), "{text:#?}");
}

#[test]
fn value_assigned_early_is_not_seen_by_a_break() {
    let k = KernelBuilder::new("k");
    let (n, v) = (k.param_u32("n"), k.var(0u32).named("v"));
    k.loop_uniform(|l| {
        let next = k.param_ptr::<u32>("next").load();
        l.break_if(n.eq(3));
        v.set(next);
    });
    k.param_ptr::<u32>("out").store(v);
    let text = lines(k);
    assert!(text.contains(&"mov.b32 %v, %r0;".to_owned()), "{text:#?}");
}

#[test]
fn loop_tested_at_its_end_has_one_branch() {
    let k = KernelBuilder::new("k");
    let mask = k.var(k.lane_id().lt(9).ballot()).named("mask");
    k.do_while_uniform(|| {
        mask.set(mask & (mask - 1));
        mask.ne(0)
    });
    let text = lines(k);
    let branches: Vec<_> = text.iter().filter(|l| l.contains("bra")).collect();
    assert_eq!(branches, ["@%p1 bra.uni $loop_0;"]);
}

#[test]
fn hints_and_vectors_are_spelt() {
    let k = KernelBuilder::new("k");
    let input = k.param_ptr::<u32>("input");
    let words = input.load_vec_with::<4>(LoadHint::NonCoherent);
    k.shared_per_block("page", 4096, 1024).base::<u32>().store_vec(words);
    let text = lines(k);
    assert_eq!(text[2], "ld.global.nc.v4.u32 {%r0, %r1, %r2, %r3}, [%input];");
    assert_eq!(text[4], "st.shared.v4.u32 [%r4], {%r0, %r1, %r2, %r3};");
}

#[test]
fn names_do_not_collide() {
    let k = KernelBuilder::new("k");
    for name in ["tid", "r1", "x", "x", "a b", "lanemask_eq"] {
        let _ = k.lane_id().named(name);
    }
    let text = lines(k);
    let names: Vec<_> = text.iter().map(|l| l.split([' ', ',']).nth(1).expect("a destination").to_owned()).collect();
    assert_eq!(names, ["%tid_", "%r1_", "%x", "%x_2", "%a_b", "%lanemask_eq_"]);
}

#[test]
fn sections_are_comments_of_one_line() {
    let k = KernelBuilder::new("k");
    k.section("two\nlines");
    let kernel = k.finish().expect("valid");
    assert!(matches!(&kernel.body[0], Stmt::Section(_)));
    assert!(emit(&kernel).contains("// two lines\n"));
}
