//! Throughput against ratio: a small mark for each row, a large one for each engine's mean.

use super::axis::{Axis, Spread};
use super::engine_style;
use super::labels::{Area, place};
use super::svg::{Anchor, Svg};
use crate::document::{Direction, Document, Mean};
use crate::engines::ON_GPU;
use crate::quantity::{counted, figure, threads};

const WIDTH: f64 = 520.0;
const HEIGHT: f64 = 460.0;
const LEFT: f64 = 50.0;
const RIGHT: f64 = WIDTH - 8.0;
const TOP: f64 = 26.0;
const BOTTOM: f64 = HEIGHT - 46.0;

/// One direction's plot.
pub(crate) fn draw(document: &Document, direction: Direction) -> String {
    let rows = &document.rows;
    let x = Axis::over(rows.iter().map(|row| row.ratio), Spread::Linear, (LEFT, RIGHT));
    let y = Axis::over(rows.iter().map(|row| row.gbps(direction)), Spread::Log, (BOTTOM, TOP));
    let mut svg = Svg::new(WIDTH, HEIGHT);
    y.draw_y(&mut svg, (LEFT, RIGHT));
    x.draw_x(&mut svg, (TOP, BOTTOM));
    svg.line("axis", (LEFT, BOTTOM), (RIGHT, BOTTOM));
    svg.text("axis-name", (LEFT - 44.0, TOP - 12.0), Anchor::Start, &format!("{}, GB/s", direction.name()));
    svg.text("axis-name", (RIGHT, HEIGHT - 6.0), Anchor::End, "compression ratio");

    let all = document.run.threads.get();
    let fill = |engine: &str, threads| if is_full(engine, threads, all) { "" } else { " hollow" };
    for row in rows {
        let class = format!("mark {}{}", engine_style::class(&row.engine), fill(&row.engine, row.threads));
        let at = (x.place(row.ratio), y.place(row.gbps(direction)));
        let speed = figure(row.gbps(direction));
        let meaning = format!(
            "{} on {}\n{}: ratio {:.3}, {} {speed} GB/s",
            row.engine,
            row.corpus,
            threads(row.threads),
            row.ratio,
            direction.name()
        );
        svg.shape(&class, at, &engine_style::outline(&row.engine, 3.0), &meaning);
    }
    let at = |mean: &Mean| (x.place(mean.ratio), y.place(mean.gbps(direction)));
    let mut taken: Vec<Area> = document.means.iter().map(|mean| Area::around(at(mean), 8.0)).collect();
    for mean in &document.means {
        let class = format!("mean {}{}", engine_style::class(&mean.engine), fill(&mean.engine, mean.threads));
        let meaning = format!(
            "{}, mean of {}\n{}: ratio {:.3}, {} {} GB/s",
            mean.engine,
            counted(mean.corpora, "corpus", "corpora"),
            threads(mean.threads),
            mean.ratio,
            direction.name(),
            figure(mean.gbps(direction))
        );
        svg.shape(&class, at(mean), &engine_style::outline(&mean.engine, 6.6), &meaning);
    }
    let bounds = Area { left: LEFT, top: TOP, right: RIGHT, bottom: BOTTOM };
    for mean in document.means.iter().filter(|mean| is_full(&mean.engine, mean.threads, all)) {
        let placed = place(&mean.engine, at(mean), bounds, &taken);
        let class = engine_style::class(&mean.engine);
        if placed.far {
            let middle = (placed.area.left + placed.area.right) / 2.0;
            let x = match placed.anchor {
                Anchor::Start => placed.area.left,
                Anchor::Middle => middle,
                Anchor::End => placed.area.right,
            };
            svg.line(&format!("leader {class}"), at(mean), (x, placed.at.1 - 4.0));
        }
        svg.text(&format!("label {class}"), placed.at, placed.anchor, &mean.engine);
        taken.push(placed.area);
    }
    let meaning = format!("{} throughput against compression ratio, by engine", direction.name());
    svg.finish(&format!("ratio-{}", direction.name()), &meaning)
}

/// Returns `true` if marks are filled: on all threads, or on the GPU.
pub(crate) fn is_full(engine: &str, threads: usize, all: usize) -> bool {
    threads == all || runs_on_gpu(engine)
}

/// Returns `true` if an engine runs on the GPU, whatever the threads that feed it.
pub(crate) fn runs_on_gpu(engine: &str) -> bool {
    ON_GPU.contains(&engine)
}
