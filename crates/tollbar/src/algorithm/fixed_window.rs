//! Fixed window: `limit` in each window of the clock, windows aligned to 1970.
//!
//! Cheap and easy to explain, and its weakness is as well: `limit` just before a boundary and
//! `limit` just after it pass, twice the limit within a moment. Choose it for quotas, not for
//! logins. The retry-after is exact: the window's end.

use super::counted_window::{CountedWindow, Windows};
use super::staggered_window::StaggeredWindow;
use crate::PolicyError;
use crate::units::Rate;

/// The algorithm's name.
pub const NAME: &str = "fixed_window";

/// So many in each window of the clock.
pub(crate) type FixedWindow = CountedWindow<AlignedWindows>;

/// Windows of one length, aligned to 1970.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AlignedWindows {
    window_us: u64,
}

impl FixedWindow {
    pub(crate) fn new(rate: Rate) -> Result<Self, PolicyError> {
        let windows = AlignedWindows { window_us: rate.window_us };
        Ok(Self { limit: rate.whole_limit()?, windows })
    }

    /// The same limit in windows that begin at another moment for every key.
    pub(crate) fn staggered(&self) -> StaggeredWindow {
        StaggeredWindow::new(self.limit, self.windows.window_us)
    }
}

/// The end of the window that `now_us` is in; the windows are aligned to 1970.
#[inline]
pub(super) fn window_end_us(now_us: u64, window_us: u64) -> u64 {
    (now_us / window_us + 1) * window_us
}

impl Windows for AlignedWindows {
    const NAME: &'static str = NAME;

    fn window_us(&self) -> u64 {
        self.window_us
    }

    #[inline(always)]
    fn start_us(&self, at_us: u64) -> u64 {
        at_us / self.window_us * self.window_us
    }

    #[inline(always)]
    fn end_us(&self, at_us: u64) -> u64 {
        window_end_us(at_us, self.window_us)
    }
}
