//! The time of a page by stage: a bar for each engine, a piece of it for each stage.

use super::axis::{Axis, number};
use super::engine_style;
use super::svg::{Anchor, Svg};
use crate::document::{Direction, Stage};

const WIDTH: f64 = 520.0;
const LEFT: f64 = 112.0;
/// Room for the sums behind the bars.
const RIGHT: f64 = WIDTH - 100.0;
const TOP: f64 = 8.0;
const BAR: f64 = 26.0;
const STEP: f64 = 42.0;

/// The class that gives a stage its colour.
pub(crate) fn class(stage: &str) -> &'static str {
    match stage {
        "same-filled test" => "s-check",
        "encode" | "decode" => "s-code",
        "pack, memory" | "place, memory" => "s-move",
        "to the GPU" => "s-in",
        "kernel" => "s-kernel",
        _ => "s-out",
    }
}

/// One direction's plot of these stages.
pub(crate) fn draw(stages: &[&Stage], direction: Direction, id: &str) -> String {
    let stages: Vec<&Stage> = stages.iter().filter(|stage| stage.direction == direction).copied().collect();
    let mut engines: Vec<&str> = stages.iter().map(|stage| stage.engine.as_str()).collect();
    engines.dedup();
    let of_engine =
        |engine: &str| stages.iter().filter(move |stage| stage.engine == engine).copied().collect::<Vec<_>>();
    let total = |engine: &str| of_engine(engine).iter().map(|stage| stage.ns_per_page).sum::<f64>();
    let longest = engines.iter().map(|engine| total(engine)).fold(0.0, f64::max);
    let bottom = TOP + STEP * engines.len() as f64;
    let x = Axis::from_zero(longest, (LEFT, RIGHT));
    let mut svg = Svg::new(WIDTH, bottom + 46.0);
    x.draw_x(&mut svg, (TOP, bottom));
    svg.text("axis-name", (RIGHT, bottom + 42.0), Anchor::End, "nanoseconds per page");
    for (i, engine) in engines.iter().enumerate() {
        let top = TOP + STEP * i as f64 + (STEP - BAR) / 2.0;
        let middle = top + BAR / 2.0 + 4.5;
        svg.text(&format!("label {}", engine_style::class(engine)), (LEFT - 12.0, middle), Anchor::End, engine);
        let mut done = 0.0;
        for stage in of_engine(engine) {
            let (start, end) = (x.place(done), x.place(done + stage.ns_per_page));
            done += stage.ns_per_page;
            let share = 100.0 * stage.ns_per_page / total(engine).max(1e-9);
            let (direction, time) = (direction.name(), ns(stage.ns_per_page));
            let meaning = format!("{engine} {direction}\n{}: {time} per page, {share:.1} %", stage.stage);
            // A stage that takes next to no time is still there to be seen.
            svg.bar(&format!("bar {}", class(stage.stage)), (start, top), ((end - start).max(1.5), BAR), &meaning);
        }
        svg.text("value", (x.place(done) + 8.0, middle), Anchor::Start, &ns(done));
    }
    svg.line("axis", (LEFT, TOP), (LEFT, bottom));
    svg.finish(&format!("{id}-{}", direction.name()), &format!("{}: nanoseconds per page by stage", direction.name()))
}

/// `3.5 ns`, `4,100 ns`.
fn ns(ns: f64) -> String {
    if ns < 10.0 { format!("{ns:.1} ns") } else { format!("{} ns", number(ns.round())) }
}
