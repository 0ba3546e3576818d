//! Layouts after changes in all orders.

use super::*;
use trueno_test_pages::generate::Generator;

fn span(start: u64, first_unit: usize, units: usize) -> UnitSpan {
    UnitSpan { start: start * PAGE, first_unit, units }
}

fn pages(range: Range<u64>) -> Range<u64> {
    range.start * PAGE..range.end * PAGE
}

#[test]
fn units_follow_their_memory() {
    let mut layout = Layout::new([span(10, 0, 10), span(30, 10, 5)]);
    assert_eq!(layout.find(12 * PAGE + 7), Some(2));
    assert_eq!((layout.find(9 * PAGE), layout.find(20 * PAGE)), (None, None));
    assert_eq!(layout.locate(11), Some((31 * PAGE, 4)));
    assert_eq!(layout.unmap(&pages(12..14)), [span(12, 2, 2)]);
    assert_eq!((layout.find(12 * PAGE), layout.locate(3)), (None, None));
    assert_eq!(layout.remap(11 * PAGE, 100 * PAGE, 5 * PAGE), [span(100, 1, 1), span(103, 4, 2)]);
    assert_eq!(layout.locate(4), Some((103 * PAGE, 2)));
    assert_eq!(layout.find(16 * PAGE), Some(6));
    let across = layout.parts_in(&pages(18..32));
    assert_eq!(across, [span(18, 8, 2), span(30, 10, 2)]);
}

#[test]
fn events_in_the_wrong_order_concern_what_was_there_first() {
    // One thread moves 10..15 to 50, another then 30..35 to the free addresses; its event is read first.
    let mut layout = Layout::new([span(10, 0, 5), span(30, 5, 5)]);
    layout.remap(30 * PAGE, 10 * PAGE, 5 * PAGE);
    assert_eq!((layout.find(12 * PAGE), layout.locate(2)), (Some(7), None));
    layout.remap(10 * PAGE, 50 * PAGE, 5 * PAGE);
    assert_eq!((layout.find(12 * PAGE), layout.find(52 * PAGE)), (Some(7), Some(2)));
    // The same with a thread that unmaps.
    let mut layout = Layout::new([span(10, 0, 5), span(30, 5, 3)]);
    layout.remap(30 * PAGE, 11 * PAGE, 3 * PAGE);
    assert_eq!(layout.unmap(&pages(10..15)), [span(11, 1, 3), span(10, 0, 1), span(14, 4, 1)]);
    assert_eq!((layout.find(12 * PAGE), layout.find(10 * PAGE)), (Some(6), None));
    layout.settle();
    assert_eq!(layout.unmap(&pages(10..15)), [span(11, 5, 3)]);
}

#[test]
fn addresses_that_were_left_and_moved_to_are_not_taken_as_unmapped() {
    // One thread moves 10..15 to 50. Another moves 30..35 to 10 before the first one's second event, that 10..15 was unmapped.
    let mut layout = Layout::new([span(10, 0, 5), span(30, 5, 5)]);
    layout.remap(10 * PAGE, 50 * PAGE, 5 * PAGE);
    layout.remap(30 * PAGE, 10 * PAGE, 5 * PAGE);
    assert_eq!(layout.unmap(&pages(10..15)), []);
    assert_eq!(layout.unmap(&pages(30..35)), []);
    assert_eq!((layout.find(12 * PAGE), layout.find(52 * PAGE)), (Some(7), Some(2)));
    layout.settle();
    assert_eq!(layout.unmap(&pages(10..15)), [span(10, 5, 5)]);
}

#[test]
fn two_units_for_one_address_of_a_child_are_ambiguous() {
    // 30..35 is moved onto 10..15, which is unmapped before, while another thread forks.
    let mut layout = Layout::new([span(10, 0, 5), span(30, 5, 5)]);
    layout.unmap(&pages(10..15));
    assert!(!layout.fork().0.is_ambiguous(), "no unit, or the one that was there");
    layout.remap(30 * PAGE, 10 * PAGE, 5 * PAGE);
    assert!(layout.fork().0.is_ambiguous());
    layout.settle();
    let mut child = layout.fork().0;
    assert!(!child.is_ambiguous());
    assert!(child.record_parent_move(&[span(13, 0, 5)], pages(13..18)));
    assert!(child.is_ambiguous());
}

#[test]
fn a_child_may_have_its_memory_before_or_after_a_change() {
    let mut layout = Layout::new([span(10, 0, 5)]);
    layout.remap(10 * PAGE, 50 * PAGE, 2 * PAGE);
    let gone = layout.unmap(&pages(14..15));
    gone[0].unit_range().for_each(|unit| layout.record_unmapped(unit));
    let (child, unmapped) = layout.fork();
    assert_eq!(unmapped, [gone[0].unit_range()]);
    assert_eq!((child.find(51 * PAGE), child.find(11 * PAGE), child.find(14 * PAGE)), (Some(1), Some(1), Some(4)));
    assert_eq!((layout.find(11 * PAGE), child.places(1)), (None, vec![11 * PAGE, 51 * PAGE]));
    layout.settle();
    let (child, unmapped) = layout.fork();
    assert_eq!((child.find(11 * PAGE), unmapped.len()), (None, 0));
}

#[test]
fn places_are_tried_from_the_oldest_to_the_newest() {
    // Moved twice before the fork is read, and once more behind it.
    let mut layout = Layout::new([span(10, 0, 4), span(40, 4, 4)]);
    layout.remap(10 * PAGE, 20 * PAGE, 4 * PAGE);
    layout.remap(20 * PAGE, 30 * PAGE, 4 * PAGE);
    let mut child = layout.fork().0;
    assert!(!child.record_parent_move(&layout.remap(30 * PAGE, 50 * PAGE, 4 * PAGE), pages(50..54)));
    assert!(!child.is_ambiguous());
    assert_eq!(child.places(3), [13, 23, 33, 53].map(|page| page * PAGE));
    assert_eq!((child.places(4), child.is_uncertain(3), child.is_uncertain(4)), (vec![40 * PAGE], true, false));
    // The child moves what may be there.
    child.remap(21 * PAGE, 81 * PAGE, PAGE);
    assert_eq!(child.places(1), [11, 81, 31, 51].map(|page| page * PAGE));
    assert_eq!(child.places(2), [12, 22, 32, 52].map(|page| page * PAGE));
}

#[test]
fn other_memory_that_comes_to_the_address_of_a_unit_makes_a_child_ambiguous() {
    // 10..14 is moved away, and memory without units from 70 to there, while another thread forks.
    let mut layout = Layout::new([span(10, 0, 4)]);
    layout.remap(10 * PAGE, 50 * PAGE, 4 * PAGE);
    assert!(!layout.fork().0.is_ambiguous());
    layout.remap(70 * PAGE, 13 * PAGE, PAGE);
    assert!(layout.fork().0.is_ambiguous());
    // The same, but its event is read behind that of the fork.
    let mut child = Layout::new([span(10, 0, 4)]).fork().0;
    assert!(!child.record_parent_move(&[], pages(14..16)) && !child.is_ambiguous());
    assert!(child.record_parent_move(&[], pages(12..16)) && child.is_ambiguous());
    // A unit that is moved onto other memory is looked for at its old address first.
    let mut layout = Layout::new([span(10, 0, 4)]);
    layout.unmap(&pages(70..74));
    layout.remap(10 * PAGE, 70 * PAGE, 4 * PAGE);
    let child = layout.fork().0;
    assert_eq!((child.is_ambiguous(), child.places(0)), (false, vec![10 * PAGE, 70 * PAGE]));
}

#[test]
fn alternatives_are_dropped_when_their_units_are_not_wanted() {
    let mut layout = Layout::new([span(10, 0, 2), span(20, 2, 2)]);
    layout.remap(10 * PAGE, 50 * PAGE, 2 * PAGE);
    layout.remap(20 * PAGE, 60 * PAGE, 2 * PAGE);
    let mut child = layout.fork().0;
    child.drop_inherited(|unit| unit == 3);
    assert_eq!((child.places(0), child.places(3)), (vec![50 * PAGE], vec![21 * PAGE, 61 * PAGE]));
    assert_eq!((child.find(10 * PAGE), child.find(21 * PAGE)), (None, Some(3)));
}

#[test]
fn any_changes_leave_every_unit_at_one_address_or_none() {
    let mut random = Generator::new(5);
    for _ in 0..50 {
        let mut layout = Layout::new((0..8).map(|number| span(number as u64 * 20, number * 16, 16)));
        // The content of each page, by the plainest means.
        let mut model: Vec<Option<usize>> = vec![None; 600];
        (0..128).for_each(|unit| model[unit / 16 * 20 + unit % 16] = Some(unit));
        for _ in 0..60 {
            let (from, len) = (random.below(200), 1 + random.below(30));
            if random.below(3) == 0 {
                layout.unmap(&pages(from as u64..(from + len) as u64));
                model[from..from + len].fill(None);
            } else {
                let to = 200 + random.below(300);
                // The kernel unmaps the target first.
                layout.unmap(&pages(to as u64..(to + len) as u64));
                layout.remap(from as u64 * PAGE, to as u64 * PAGE, len as u64 * PAGE);
                layout.settle();
                let moved = model[from..from + len].to_vec();
                model[from..from + len].fill(None);
                model[to..to + len].copy_from_slice(&moved);
            }
        }
        for (page, unit) in model.iter().enumerate() {
            assert_eq!(layout.find(page as u64 * PAGE), *unit);
            if let Some(unit) = unit {
                assert_eq!(layout.locate(*unit).unwrap().0, page as u64 * PAGE);
            }
        }
        assert_eq!(model.iter().flatten().count(), (0..128).filter(|unit| layout.locate(*unit).is_some()).count());
    }
}

#[test]
fn changes_that_were_known_twice_are_forgotten() {
    let mut layout = Layout::new([span(10, 0, 2), span(20, 2, 2)]);
    layout.remap(10 * PAGE, 50 * PAGE, 2 * PAGE);
    layout.forget_old();
    assert_eq!(layout.fork().0.places(0), [10, 50].map(|page| page * PAGE));
    layout.remap(20 * PAGE, 60 * PAGE, 2 * PAGE);
    layout.forget_old();
    let child = layout.fork().0;
    assert_eq!((child.places(0), child.places(2)), (vec![50 * PAGE], [20, 60].map(|page| page * PAGE).to_vec()));
    layout.settle();
    layout.forget_old();
    assert_eq!(layout.fork().0.places(2), [60 * PAGE]);
}

/// The plainest way to see whether spans have two units for one address.
fn have_two_units(spans: &[UnitSpan]) -> bool {
    let units = |page: u64| spans.iter().filter_map(move |span| span.unit_at(page * PAGE));
    (0..100).any(|page| units(page).any(|unit| Some(unit) != units(page).next()))
}

#[test]
fn ambiguous_layouts_are_found_whatever_their_pieces() {
    let mut random = Generator::new(7);
    let mut found = 0;
    for _ in 0..2000 {
        let spans: Vec<UnitSpan> = (0..2 + random.below(5))
            .map(|_| {
                let (start, units) = (random.below(60), 1 + random.below(12));
                // Mostly where these units would be without any move: such spans agree.
                let first_unit = if random.below(8) == 0 { random.below(60) } else { start };
                span(start as u64, first_unit, units)
            })
            .collect();
        let mut layout = Layout { earlier: spans.clone(), ..Layout::default() };
        let expected = have_two_units(&spans);
        assert_eq!(layout.is_ambiguous(), expected, "{spans:?}");
        found += usize::from(expected);
        let new = span(random.below(60) as u64, random.below(60), 1 + random.below(12));
        let with_new = [&spans[..], &[new]].concat();
        let is_new = layout.record_parent_move(&[new], new.start..new.end());
        assert_eq!(expected || is_new, have_two_units(&with_new), "{with_new:?}");
    }
    assert!((200..1900).contains(&found), "{found}");
}
