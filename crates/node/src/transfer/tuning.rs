//! How this node reads objects from each peer: the results of calibrations, and of reads since.
//! Owns [`Tuner`]. Engine thread only.
//!
//! Without a calibration the defaults hold. Every so often a large read tries a chunk or a window
//! next to those in force. A plan that is certainly faster replaces the one in force. The plan stays
//! within bounds, the log reports the change, and `explain` says which plan was used. A new
//! calibration replaces all of that.

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;
use std::{fmt, fs, io};

use plasmon::NodeId;
use plasmon::transfer::Calibration;
use tracing::{info, warn};

use crate::kernel::Kernel;
use crate::kernel::random::HashMap;
use crate::membership::Cluster;
use crate::net::windows::PUSHED_BYTES_MAX;

/// Number of bytes of a read. A read is so small that reads of several objects share the lane fairly, and
/// that over TCP one end takes a read out of its socket while the other puts in the next. TCP's sender
/// does not look for acknowledgements in the middle of a read.
const CHUNK_BYTES: u64 = 512 << 10;
/// Number of bytes up to which an object comes in messages. Over TCP, longer objects came sooner by a read.
const EAGER_BYTES: u32 = 48 << 10;
/// Number of bytes up to which a longer object comes by a write to this node's window.
const PUSH_BYTES: u32 = PUSHED_BYTES_MAX;
/// The bounds of chunks in bytes.
const CHUNK_BYTES_RANGE: std::ops::RangeInclusive<u64> = 128 << 10..=4 << 20;
/// Number of reads of one object that are under way at one holder, for each bulk lane that takes long reads.
const WINDOW_READS: u32 = 2;
/// The bounds of windows in reads.
const WINDOW_READS_RANGE: std::ops::RangeInclusive<u32> = 1..=16;

/// Length in bytes of the shortest read that says much about chunks and windows.
const TELLING_BYTES: u64 = 8 << 20;
/// Number of telling reads of which one is a trial of another plan.
const READS_A_TRIAL: u64 = 16;
/// Minimum number of reads by a plan before its results count.
const LEAST_TRIALS: u32 = 3;
/// How many times as fast as the plan in force another plan has to be to replace it.
const BETTER_RATIO: f64 = 1.05;
/// Weight of the latest read in the mean of all.
const LATEST_WEIGHT: f64 = 0.25;

/// A plan for reading from a peer: the length of a chunk, and the number of reads under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Plan {
    pub(super) chunk: u64,
    pub(super) window: u32,
}

/// The origin of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Default,
    Calibrated,
    Refined,
    Trial,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Default => "by default",
            Self::Calibrated => "as calibrated",
            Self::Refined => "as seen to be faster",
            Self::Trial => "for a trial",
        })
    }
}

/// A plan, and the words that explain it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Choice {
    pub(super) plan: Plan,
    source: Source,
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Plan { chunk, window } = self.plan;
        write!(f, "{window} reads of {} KiB at a time, {}", chunk >> 10, self.source)
    }
}

/// The plan for a peer's host, and the rates of reads from that host.
struct Tuning {
    plan: Plan,
    source: Source,
    reads: u64,
    /// The mean rate in bytes a microsecond, and the number of reads, by plan.
    seen: HashMap<Plan, (f64, u32)>,
}

impl Tuning {
    fn new(plan: Plan, source: Source) -> Self {
        Self { plan, source, reads: 0, seen: HashMap::default() }
    }

    fn choose(&mut self, len: u64) -> Choice {
        if len < TELLING_BYTES {
            return Choice { plan: self.plan, source: self.source };
        }
        self.reads += 1;
        match self.neighbour().filter(|_| self.reads.is_multiple_of(READS_A_TRIAL)) {
            Some(plan) => Choice { plan, source: Source::Trial },
            None => Choice { plan: self.plan, source: self.source },
        }
    }

    /// Returns the plan beside the one in force that is to be tried next.
    fn neighbour(&self) -> Option<Plan> {
        let Plan { chunk, window } = self.plan;
        let around = [
            Plan { chunk, window: window * 2 },
            Plan { chunk: chunk * 2, window },
            Plan { chunk, window: window / 2 },
            Plan { chunk: chunk / 2, window },
        ];
        let plan = around[(self.reads / READS_A_TRIAL) as usize % around.len()];
        (CHUNK_BYTES_RANGE.contains(&plan.chunk) && WINDOW_READS_RANGE.contains(&plan.window)).then_some(plan)
    }

    /// Notes the rate of a read by a plan. Returns the new plan if another one is in force from now on.
    fn saw(&mut self, plan: Plan, len: u64, took: Duration) -> Option<Plan> {
        if len < TELLING_BYTES || took.is_zero() {
            return None;
        }
        let rate = len as f64 / took.as_micros().max(1) as f64;
        let (mean, times) = self.seen.entry(plan).or_insert((rate, 0));
        *mean += LATEST_WEIGHT * (rate - *mean);
        *times += 1;
        let (trial, times) = (*mean, *times);
        let (present, seen) = self.seen.get(&self.plan).copied()?;
        if plan == self.plan || times < LEAST_TRIALS || seen < LEAST_TRIALS || trial < present * BETTER_RATIO
        {
            return None;
        }
        (self.plan, self.source) = (plan, Source::Refined);
        Some(plan)
    }
}

/// Returns the window of a host that was not calibrated, with `lanes` bulk lanes. The first of
/// several lanes takes short reads ([`Network::read`](crate::net::network::Network::read)); a lane
/// without a read carries nothing.
fn window_reads(lanes: usize) -> u32 {
    let long = u32::try_from(lanes.saturating_sub(1).max(1)).unwrap_or(u32::MAX);
    WINDOW_READS.saturating_mul(long).min(*WINDOW_READS_RANGE.end())
}

/// The tunings of all peers' hosts.
#[derive(Default)]
pub(crate) struct Tunings {
    by_host: HashMap<String, Tuning>,
    calibrations: HashMap<String, Calibration>,
}

impl Tunings {
    /// Loads the calibrations that were made with this provider. If the file cannot be read, there are none.
    pub(crate) fn load(path: Option<&Path>, provider: &str) -> Self {
        Self::of_provider(path.map(read).unwrap_or_default(), provider)
    }

    fn of_provider(calibrations: Vec<Calibration>, provider: &str) -> Self {
        let mut tunings = Self::default();
        for calibration in calibrations {
            if calibration.provider == provider {
                tunings.calibrated(calibration);
            }
        }
        tunings
    }

    /// Puts a calibration in force.
    fn calibrated(&mut self, calibration: Calibration) {
        let chunk = calibration.chunk.clamp(*CHUNK_BYTES_RANGE.start(), *CHUNK_BYTES_RANGE.end());
        let window = calibration.window.clamp(*WINDOW_READS_RANGE.start(), *WINDOW_READS_RANGE.end());
        let tuning = Tuning::new(Plan { chunk, window }, Source::Calibrated);
        self.by_host.insert(calibration.host.clone(), tuning);
        self.calibrations.insert(calibration.host.clone(), calibration);
    }

    /// Returns the tuning of a host, with `lanes` bulk lanes to each peer.
    fn of(&mut self, host: &str, lanes: usize) -> &mut Tuning {
        if !self.by_host.contains_key(host) {
            let plan = Plan { chunk: CHUNK_BYTES, window: window_reads(lanes) };
            self.by_host.insert(host.to_owned(), Tuning::new(plan, Source::Default));
        }
        self.by_host.get_mut(host).expect("just made")
    }

    /// Number of bytes up to which objects are to come in messages. The holder that will answer a fetch
    /// is not known before, so this is the smallest of the calibrated values.
    fn eager_max(&self) -> u32 {
        self.calibrations.values().map(|one| one.eager_max).min().unwrap_or(EAGER_BYTES)
    }

    /// Number of bytes up to which longer objects are to be written to this node's windows. This is the
    /// smallest of the calibrated values, as with messages.
    fn push_max(&self) -> u32 {
        // Calibrations of former releases have no times of writes.
        let measured = |one: &&Calibration| one.small.iter().any(|point| point.push_us > 0.0);
        let calibrated = self.calibrations.values().filter(measured).map(|one| one.push_max).min();
        calibrated.unwrap_or(PUSH_BYTES).min(PUSHED_BYTES_MAX)
    }
}

/// How this node reads from its peers.
pub(super) struct Tuner {
    kernel: Rc<Kernel>,
    cluster: Rc<Cluster>,
    tunings: RefCell<Tunings>,
}

impl Tuner {
    pub(super) fn new(kernel: &Rc<Kernel>, cluster: &Rc<Cluster>, tunings: Tunings) -> Self {
        let tunings = RefCell::new(tunings);
        Self { kernel: Rc::clone(kernel), cluster: Rc::clone(cluster), tunings }
    }

    /// Chooses how to read an object of `len` bytes from a peer.
    pub(super) fn choose(&self, holder: NodeId, len: u64) -> Choice {
        self.tunings.borrow_mut().of(&self.host_of(holder), self.kernel.config.lanes).choose(len)
    }

    /// Takes note of a finished read of `len` bytes.
    pub(super) fn saw(&self, holder: NodeId, plan: Plan, len: u64, took: Duration) {
        let host = self.host_of(holder);
        if let Some(plan) = self.tunings.borrow_mut().of(&host, self.kernel.config.lanes).saw(plan, len, took)
        {
            let Plan { chunk, window } = plan;
            info!(%host, chunk, window, "large reads from this host use a faster plan from now on");
        }
    }

    /// Number of bytes up to which objects are to come to this node in messages.
    pub(super) fn eager_max(&self) -> u32 {
        self.tunings.borrow().eager_max()
    }

    /// Number of bytes up to which longer objects are to be written to this node's windows.
    pub(super) fn push_max(&self) -> u32 {
        self.tunings.borrow().push_max()
    }

    /// Puts a calibration in force and keeps it for later starts.
    pub(super) fn keep(&self, calibration: Calibration) {
        self.tunings.borrow_mut().calibrated(calibration.clone());
        let Some(path) = &self.kernel.config.calibration else { return };
        let mut kept = read(path);
        kept.retain(|one| (&one.provider, &one.host) != (&calibration.provider, &calibration.host));
        kept.push(calibration);
        if let Err(error) = write(path, &kept) {
            warn!("the calibration is lost at the next start: cannot write {}: {error}", path.display());
        }
    }

    /// Returns the host of a member, without its port.
    pub(super) fn host_of(&self, node: NodeId) -> String {
        let view = self.cluster.view();
        let member = view.members.into_iter().find(|member| member.node == node);
        let listen = member.map(|member| member.listen).unwrap_or_default();
        listen.rsplit_once(':').map_or(listen.clone(), |(host, _)| host.to_owned())
    }
}

fn read(path: &Path) -> Vec<Calibration> {
    let parsed = match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Vec::new(),
        Err(error) => Err(error.to_string()),
        Ok(text) => parse(&text).map_err(|error| error.to_string()),
    };
    parsed.unwrap_or_else(|error| {
        warn!("calibrations are not used: cannot read {}: {error}", path.display());
        Vec::new()
    })
}

fn parse(text: &[u8]) -> serde_json::Result<Vec<Calibration>> {
    serde_json::from_slice(text)
}

/// Writes the file as a whole or not at all.
fn write(path: &Path, calibrations: &[Calibration]) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let beside = path.with_extension(format!("{}.new", std::process::id()));
    fs::write(&beside, serde_json::to_vec_pretty(calibrations)?)?;
    fs::rename(&beside, path)
}

#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;

#[cfg(test)]
mod tests {
    use super::*;

    const DEFAULT: Plan = Plan { chunk: CHUNK_BYTES, window: WINDOW_READS };
    const LEN: u64 = 64 << 20;

    fn took(plan: Plan) -> Duration {
        // More reads at a time are faster here.
        Duration::from_micros(40_000 / u64::from(plan.window))
    }

    #[test]
    fn a_faster_neighbour_takes_over_within_bounds() {
        let mut tuning = Tuning::new(DEFAULT, Source::Default);
        for _ in 0..10_000 {
            let choice = tuning.choose(LEN);
            tuning.saw(choice.plan, LEN, took(choice.plan));
        }
        assert_eq!((tuning.plan.window, tuning.source), (16, Source::Refined));
    }

    #[test]
    fn every_lane_of_long_reads_has_two_of_them() {
        assert_eq!([1, 2, 4, 8, 16].map(window_reads), [2, 2, 6, 14, 16]);
    }

    #[test]
    fn nothing_changes_for_short_reads_or_small_differences() {
        let mut tuning = Tuning::new(DEFAULT, Source::Calibrated);
        for round in 0..10_000 {
            let choice = tuning.choose(TELLING_BYTES - 1);
            assert_eq!(choice.plan, DEFAULT);
            tuning.saw(choice.plan, TELLING_BYTES - 1, Duration::from_micros(1));
            let choice = tuning.choose(LEN);
            // The rates have a little noise, the same for all.
            tuning.saw(choice.plan, LEN, Duration::from_micros(10_000 + round % 7 * 20));
        }
        assert_eq!((tuning.plan, tuning.source), (DEFAULT, Source::Calibrated));
    }

    #[test]
    fn calibrations_are_kept_by_provider_and_host() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state").join("calibration.json");
        let of = |provider: &str, window| Calibration {
            provider: provider.to_owned(),
            host: "a".to_owned(),
            eager_max: 9000,
            chunk: 1 << 30,
            window,
            ..Calibration::default()
        };
        write(&path, &[of("tcp", 2), of("verbs", 8)]).unwrap();
        let mut tunings = Tunings::load(Some(&path), "verbs");
        assert_eq!(tunings.of("a", 1).plan, Plan { chunk: *CHUNK_BYTES_RANGE.end(), window: 8 });
        assert_eq!(tunings.of("b", 1).plan, DEFAULT);
        assert_eq!(tunings.eager_max(), 9000);
        fs::write(&path, "nonsense").unwrap();
        assert_eq!(Tunings::load(Some(&path), "verbs").eager_max(), EAGER_BYTES);
    }
}
