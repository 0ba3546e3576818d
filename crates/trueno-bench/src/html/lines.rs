//! Plots of speed by batch size, or by threads: a line for each engine.

use super::axis::{Axis, Spread};
use super::engine_style;
use super::labels::apart;
use super::svg::{Anchor, Svg};
use crate::document::{Along, Direction, Document, Point};
use crate::quantity::{self, figure, threads};

const WIDTH: f64 = 520.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 50.0;
/// Room for the engines' names behind the lines' ends.
const RIGHT: f64 = WIDTH - 96.0;
const TOP: f64 = 26.0;
const BOTTOM: f64 = HEIGHT - 46.0;

impl Along {
    fn of(self, point: &Point) -> usize {
        match self {
            Self::Batch => point.pages,
            Self::Threads => point.threads,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Batch => "batch",
            Self::Threads => "threads",
        }
    }

    fn axis_name(self) -> &'static str {
        match self {
            Self::Batch => "pages per batch",
            Self::Threads => "threads",
        }
    }
}

/// One direction's plot.
pub(crate) fn draw(document: &Document, along: Along, direction: Direction) -> String {
    let points: Vec<&Point> = document.scaling.iter().filter(|point| point.along == along).collect();
    let mut ticks: Vec<usize> = points.iter().map(|point| along.of(point)).collect();
    ticks.sort_unstable();
    ticks.dedup();
    let x = Axis::at(ticks.iter().map(|tick| *tick as f64).collect(), (LEFT + 8.0, RIGHT - 6.0));
    let y = Axis::over(points.iter().map(|point| point.gbps(direction)), Spread::Log, (BOTTOM, TOP));
    let mut svg = Svg::new(WIDTH, HEIGHT);
    y.draw_y(&mut svg, (LEFT, RIGHT));
    x.draw_x(&mut svg, (TOP, BOTTOM));
    svg.line("axis", (LEFT, BOTTOM), (RIGHT, BOTTOM));
    svg.text("axis-name", (LEFT - 44.0, TOP - 12.0), Anchor::Start, &format!("{}, GB/s", direction.name()));
    svg.text("axis-name", (RIGHT, HEIGHT - 6.0), Anchor::End, along.axis_name());

    let engines: Vec<&str> =
        engine_style::ENGINES.into_iter().filter(|engine| points.iter().any(|point| point.engine == *engine)).collect();
    let series = |engine: &str| -> Vec<(&Point, (f64, f64))> {
        let of_engine = points.iter().filter(|point| point.engine == engine);
        of_engine.map(|point| (*point, (x.place(along.of(point) as f64), y.place(point.gbps(direction))))).collect()
    };
    if along == Along::Threads {
        draw_ideal(&mut svg, &x, &y, &series("trueno-cpu"), direction);
    }
    for engine in &engines {
        let class = engine_style::class(engine);
        let points = series(engine);
        let thin = if *engine == "memcpy" { " thin" } else { "" };
        svg.polyline(&format!("series {class}{thin}"), &points.iter().map(|(_, at)| *at).collect::<Vec<_>>());
        for (point, at) in points {
            let meaning = format!(
                "{engine}, {}, {}\n{} {} GB/s",
                threads(point.threads),
                quantity::pages(point.pages),
                direction.name(),
                figure(point.gbps(direction))
            );
            svg.shape(&format!("mark point {class}"), at, &engine_style::outline(engine, 3.6), &meaning);
        }
    }
    let ends: Vec<f64> = engines.iter().map(|engine| series(engine).last().map_or(TOP, |(_, at)| at.1)).collect();
    for (engine, y) in engines.iter().zip(apart(&ends, TOP, BOTTOM)) {
        svg.text(&format!("label {}", engine_style::class(engine)), (RIGHT + 6.0, y + 4.0), Anchor::Start, engine);
    }
    let meaning = format!("{} throughput by {}", direction.name(), along.axis_name());
    svg.finish(&format!("{}-{}", along.name(), direction.name()), &meaning)
}

/// The line of perfect scaling, from one thread on, as far as the plot goes.
fn draw_ideal(svg: &mut Svg, x: &Axis, y: &Axis, series: &[(&Point, (f64, f64))], direction: Direction) {
    let (Some((first, start)), Some((last, _))) = (series.first(), series.last()) else { return };
    if first.threads == last.threads {
        return;
    }
    let ideal = |threads: f64| first.gbps(direction) * threads / first.threads as f64;
    // The line leaves the plot at the top where it would be steeper than what was measured allows.
    let (mut low, mut high) = (first.threads as f64, last.threads as f64);
    if y.place(ideal(high)) < TOP {
        for _ in 0..40 {
            let middle = (low + high) / 2.0;
            if y.place(ideal(middle)) < TOP { high = middle } else { low = middle }
        }
        high = low;
    }
    svg.polyline("ideal", &[*start, (x.place(high), y.place(ideal(high)))]);
}
