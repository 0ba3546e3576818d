//! Simulated machines: which placement is chosen on each, for how long, and at what cost.

use super::*;

/// A machine with known times: microseconds per batch and nanoseconds per page.
#[derive(Clone, Copy, Debug)]
struct Machine {
    gpu: (u64, u64),
    cpu: (u64, u64),
    both: (u64, u64),
}

/// The GPU is six times as fast as the CPU once started. Both together are slightly faster than the GPU alone.
const SERVER: Machine = Machine { gpu: (200, 100), cpu: (10, 600), both: (260, 90) };

impl Machine {
    fn time(self, choice: Placement, pages: usize) -> Duration {
        let (fixed_us, page_ns) = match choice {
            Placement::Gpu => self.gpu,
            Placement::Cpu => self.cpu,
            Placement::Both => self.both,
        };
        Duration::from_micros(fixed_us) + Duration::from_nanos(page_ns * pages as u64)
    }

    fn fastest(self, pages: usize) -> Placement {
        let choices = [Placement::Gpu, Placement::Cpu, Placement::Both];
        choices.into_iter().min_by_key(|choice| self.time(*choice, pages)).expect("there are three placements")
    }

    /// Runs `batches` batches and returns the placements chosen.
    fn run(self, rates: &mut Rates, direction: Direction, pages: usize, batches: usize) -> Vec<Placement> {
        let one = |_| {
            let choice = rates.choose(direction, pages);
            rates.record(direction, choice, pages, self.time(choice, pages));
            choice
        };
        (0..batches).map(one).collect()
    }
}

fn count(choices: &[Placement], of: Placement) -> usize {
    choices.iter().filter(|choice| **choice == of).count()
}

#[test]
fn each_class_settles_on_its_fastest_placement() {
    let mut rates = Rates::new();
    for direction in [Direction::Compress, Direction::Decompress] {
        for pages in (6..20).map(|n| 1 << n) {
            let choices = SERVER.run(&mut rates, direction, pages, 60);
            assert!(count(&choices, SERVER.fastest(pages)) >= 54, "{pages} pages: {choices:?}");
            assert!(choices[6..].iter().all(|choice| *choice == SERVER.fastest(pages)), "{pages} pages: {choices:?}");
        }
    }
    // 190 us / 500 ns: the GPU beats the CPU from 380 pages on. 60 us / 10 ns: both beat the GPU from 6,000 pages on.
    assert_eq!([256, 512, 4096, 8192].map(|pages| SERVER.fastest(pages)), {
        [Placement::Cpu, Placement::Gpu, Placement::Gpu, Placement::Both]
    });
}

#[test]
fn tries_unknown_placements_once_and_a_cold_gpu_twice() {
    use Placement::{Both, Cpu, Gpu};
    let mut rates = Rates::new();
    let all_new = SERVER.run(&mut rates, Direction::Compress, 1000, 5);
    assert_eq!(all_new, [Gpu, Gpu, Cpu, Both, Gpu]);
    let warm = SERVER.run(&mut rates, Direction::Compress, 600_000, 4);
    assert_eq!(warm, [Gpu, Cpu, Both, Both], "the GPU is warm, and both together are fastest here");
    let small = SERVER.run(&mut rates, Direction::Compress, 100, 4);
    assert_eq!(small, [Cpu, Gpu, Both, Cpu], "below 1,000 pages the CPU is tried first");
    assert_eq!(rates.choose(Direction::Decompress, 1000), Gpu, "directions are measured separately");
}

#[test]
fn ignores_the_time_of_the_first_gpu_use() {
    let mut rates = Rates::new();
    let pages = 10_000;
    let allocating = Duration::from_secs(2);
    assert_eq!(rates.choose(Direction::Decompress, pages), Placement::Gpu);
    rates.record(Direction::Decompress, Placement::Gpu, pages, allocating);
    let choices = SERVER.run(&mut rates, Direction::Decompress, pages, 50);
    assert_eq!(choices[49], SERVER.fastest(pages), "{choices:?}");
}

#[test]
fn small_batches_stay_on_the_cpu() {
    let gpu_is_magic = Machine { gpu: (0, 1), both: (0, 1), ..SERVER };
    let mut rates = Rates::new();
    for pages in [0, 1, 2, 32, 63] {
        let choices = gpu_is_magic.run(&mut rates, Direction::Compress, pages, 200);
        assert_eq!(count(&choices, Placement::Cpu), 200, "{pages} pages");
    }
    assert_eq!(gpu_is_magic.run(&mut rates, Direction::Compress, 64, 20)[19], Placement::Gpu);
}

#[test]
fn tries_only_the_runner_up_every_64th_batch() {
    let mut rates = Rates::new();
    let pages = 100_000;
    SERVER.run(&mut rates, Direction::Compress, pages, 63);
    let choices = SERVER.run(&mut rates, Direction::Compress, pages, 640);
    assert_eq!((count(&choices, Placement::Gpu), count(&choices, Placement::Cpu)), (10, 0));
    assert!(choices.iter().step_by(64).all(|choice| *choice == Placement::Gpu), "{choices:?}");
}

#[test]
fn hopeless_placements_are_measured_once() {
    // An interpreter in place of the GPU.
    let no_gpu = Machine { gpu: (1000, 1_000_000), cpu: (10, 600), both: (1000, 900_000) };
    let mut rates = Rates::new();
    let choices = no_gpu.run(&mut rates, Direction::Compress, 2000, 2000);
    assert_eq!(
        (count(&choices, Placement::Gpu), count(&choices, Placement::Both)),
        (2, 0),
        "a warm-up and a measurement"
    );
    let choices = no_gpu.run(&mut rates, Direction::Compress, 200, 2000);
    assert_eq!((count(&choices, Placement::Gpu), count(&choices, Placement::Both)), (1, 0));
}

#[test]
fn leaves_a_placement_that_slows_down() {
    let mut rates = Rates::new();
    let pages = 4096;
    SERVER.run(&mut rates, Direction::Compress, pages, 50);
    // Another process saturates the bus.
    let busy = Machine { gpu: (200, 2000), both: (260, 2000), ..SERVER };
    let choices = busy.run(&mut rates, Direction::Compress, pages, 40);
    assert_eq!(choices[0], Placement::Gpu);
    assert!(choices[30..].iter().all(|choice| *choice == Placement::Cpu), "{choices:?}");
}

#[test]
fn finds_a_runner_up_that_gets_faster() {
    let mut rates = Rates::new();
    let pages = 4096;
    let choices = SERVER.run(&mut rates, Direction::Compress, pages, 50);
    assert_eq!(choices[49], Placement::Gpu);
    let more_cores = Machine { both: (100, 60), ..SERVER };
    let choices = more_cores.run(&mut rates, Direction::Compress, pages, 300);
    assert_eq!(choices[299], Placement::Both, "{choices:?}");
}

#[test]
fn one_disturbed_batch_does_not_change_the_placement() {
    let mut rates = Rates::new();
    let pages = 4096;
    // Both together reach three quarters of the GPU's rate.
    let machine = Machine { both: (400, 100), ..SERVER };
    machine.run(&mut rates, Direction::Compress, pages, 20);
    // Half as fast, once: the average drops by an eighth.
    rates.record(Direction::Compress, Placement::Gpu, pages, 2 * machine.time(Placement::Gpu, pages));
    assert_eq!(rates.choose(Direction::Compress, pages), Placement::Gpu);
}

#[test]
fn split_starts_from_single_rates_and_follows_the_sides() {
    let (direction, pages) = (Direction::Compress, 10_000);
    let mut rates = Rates::new();
    assert_eq!(rates.head_pages(direction, pages), 5000, "nothing has been measured");
    for (choice, time_ms) in [(Placement::Gpu, 10), (Placement::Cpu, 30)] {
        for _warm_up_and_measurement in 0..2 {
            rates.record(direction, choice, pages, Duration::from_millis(time_ms));
        }
    }
    assert_eq!(rates.head_pages(direction, pages), 7500, "the GPU is three times as fast");
    // While both work, the CPU has less bandwidth to itself: nine to one.
    let (gpu_ns, cpu_ns) = (1000, 9000);
    let mut head = rates.head_pages(direction, pages);
    for _ in 0..20 {
        let part = |pages: usize, page_ns| Part { pages, time: Duration::from_nanos(pages as u64 * page_ns) };
        rates.record_sides(direction, part(head, gpu_ns), part(pages - head, cpu_ns));
        head = rates.head_pages(direction, pages);
    }
    assert_eq!(head, 9000);
    assert_eq!(rates.head_pages(Direction::Decompress, pages), 5000, "directions are measured separately");
}

#[test]
fn each_side_gets_enough_pages_to_measure() {
    let part = |pages: usize, time_ms| Part { pages, time: Duration::from_millis(time_ms) };
    for (gpu_ms, cpu_ms, head) in [(1, 1_000_000, 6400 - 200), (1_000_000, 1, 200)] {
        let mut rates = Rates::new();
        rates.record_sides(Direction::Compress, part(3200, gpu_ms), part(3200, cpu_ms));
        assert_eq!(rates.head_pages(Direction::Compress, 6400), head);
    }
    let mut rates = Rates::new();
    for pages in [0, 1, 2, 3, 64, usize::MAX] {
        assert!(rates.head_pages(Direction::Compress, pages) <= pages);
    }
}

#[test]
fn no_pages_or_no_time_give_no_rate() {
    let mut rates = Rates::new();
    for _ in 0..5 {
        assert_eq!(rates.choose(Direction::Compress, 5000), Placement::Gpu, "still unknown");
        rates.record(Direction::Compress, Placement::Gpu, 5000, Duration::ZERO);
        rates.record(Direction::Compress, Placement::Gpu, 0, Duration::from_secs(1));
    }
    assert_eq!(Rate::of(1, Duration::MAX), Some(Rate(1)), "at least 1, so that a share can be computed");
    assert_eq!(Rate::of(usize::MAX, Duration::from_nanos(1)), Some(Rate(u64::MAX)));
}
