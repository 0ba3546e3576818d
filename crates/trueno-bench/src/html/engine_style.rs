//! The colour and the shape of each engine in every plot. Either alone tells engines apart.

/// The engines, in the order of legends; others are drawn like `memcpy`.
pub(crate) const ENGINES: [&str; 14] = [
    "trueno-cpu",
    "trueno-gpu",
    "trueno-gpu-zstd",
    "trueno-kernel",
    "trueno-kernel-zstd",
    "c-lz4",
    "lz4-flex",
    "zstd-1",
    "zstd-3",
    "zstd-9",
    "zram-lz4",
    "nvcomp-lz4",
    "nvcomp-zstd",
    "memcpy",
];

/// The class that gives an engine its colour.
pub(crate) fn class(engine: &str) -> String {
    format!("e-{}", if ENGINES.contains(&engine) { engine } else { "memcpy" })
}

/// The outline of an engine's marks, about the origin.
pub(crate) fn outline(engine: &str, radius: f64) -> String {
    // Corners and the angle of the first, in eighths of a turn; areas look alike at these sizes.
    let (corners, turn, size) = match engine {
        "trueno-cpu" => return circle(radius),
        "trueno-gpu" => return star(5, radius * 1.35),
        "trueno-gpu-zstd" => return star(4, radius * 1.45),
        "trueno-kernel" => return star(7, radius * 1.35),
        "trueno-kernel-zstd" => return star(6, radius * 1.35),
        "zstd-9" => return star(3, radius * 1.5),
        "c-lz4" => (4, 1.0, 1.2),
        "lz4-flex" => (3, -2.0, 1.32),
        "zstd-1" => (4, 0.0, 1.28),
        "zram-lz4" => (3, 2.0, 1.32),
        "zstd-3" => (8, 0.5, 1.1),
        "nvcomp-lz4" => (6, 0.0, 1.1),
        "nvcomp-zstd" => (6, 2.0, 1.1),
        _ => (5, -2.0, 1.15),
    };
    polygon((0..corners).map(|i| (f64::from(i) / f64::from(corners) + turn / 8.0, radius * size)))
}

fn circle(r: f64) -> String {
    format!("M{r:.2} 0A{r:.2} {r:.2} 0 1 1 {:.2} 0A{r:.2} {r:.2} 0 1 1 {r:.2} 0Z", -r)
}

fn star(points: i32, radius: f64) -> String {
    let corners = 2 * points;
    let corner = |i: i32| (f64::from(i) / f64::from(corners) - 0.25, if i % 2 == 0 { radius } else { radius * 0.5 });
    polygon((0..corners).map(corner))
}

/// Corners by their turn about the origin and their distance from it.
fn polygon(corners: impl Iterator<Item = (f64, f64)>) -> String {
    let place = |(turn, radius): (f64, f64)| {
        let angle = turn * std::f64::consts::TAU;
        format!("{:.2} {:.2}", radius * angle.cos(), radius * angle.sin())
    };
    format!("M{}Z", corners.map(place).collect::<Vec<_>>().join("L"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_engine_has_its_own_colour_and_shape() {
        for (i, engine) in ENGINES.iter().enumerate() {
            assert_eq!(class(engine), format!("e-{engine}"));
            for other in &ENGINES[..i] {
                assert_ne!(outline(engine, 5.0), outline(other, 5.0), "{engine} and {other}");
            }
        }
    }
}
