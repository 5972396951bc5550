//! Which algorithm a policy has, and what stores need to know of it.

use std::borrow::Cow;
use std::sync::Arc;

use crate::algorithm::Algorithm;
use crate::algorithm::calendar_window::CalendarWindow;
use crate::algorithm::concurrency::ConcurrencyLimit;
use crate::algorithm::debt::Meter;
use crate::algorithm::fixed_window::FixedWindow;
use crate::algorithm::leaky_queue::LeakyQueue;
use crate::algorithm::leased::LeasedConcurrency;
use crate::algorithm::sliding_log::SlidingLog;
use crate::algorithm::sliding_strict::SlidingStrict;
use crate::algorithm::sliding_window::SlidingWindow;
use crate::algorithm::staggered_window::StaggeredWindow;
use crate::algorithm::warm_up::{Rungs, WarmUpAlgorithm};
use crate::algorithm::word::PackedAlgorithm;

/// The built-in algorithms by type, so that a check needs no virtual call.
#[derive(Debug, Clone)]
pub(crate) enum Kind {
    Bucket(Meter),
    LeakyQueue(LeakyQueue),
    FixedWindow(FixedWindow),
    /// Before it counts, it is bound to a key: see [`for_key`](Self::for_key).
    StaggeredWindow(StaggeredWindow),
    CalendarWindow(CalendarWindow),
    SlidingWindow(SlidingWindow),
    SlidingStrict(SlidingStrict),
    /// Its state is a list: a store keeps it in its own way, or over as many words as it asks for.
    SlidingLog(SlidingLog),
    /// One of the others, with a limit that climbs. May be bound to a key as well.
    WarmUp(WarmUpAlgorithm),
    Concurrency(ConcurrencyLimit),
    /// Its state is a list: a store keeps it in its own way.
    Leased(LeasedConcurrency),
    Custom(Arc<dyn Algorithm>),
}

impl Kind {
    /// What counts for this very key. The same for all, but for staggered windows.
    #[inline]
    pub(crate) fn for_key(&self, key: &[u8]) -> Cow<'_, Self> {
        match self {
            Self::StaggeredWindow(window) => Cow::Owned(Self::StaggeredWindow(window.for_key(key))),
            Self::WarmUp(warming) => match warming.for_key(key) {
                Some(warming) => Cow::Owned(Self::WarmUp(warming)),
                None => Cow::Borrowed(self),
            },
            _ => Cow::Borrowed(self),
        }
    }

    /// What it is without its warm-up.
    pub(crate) fn plain(&self) -> Cow<'_, Self> {
        let Self::WarmUp(warming) = self else {
            return Cow::Borrowed(self);
        };
        Cow::Owned(match warming.rungs() {
            Rungs::Bucket(ladder) => Self::Bucket(ladder.plain().clone()),
            Rungs::LeakyQueue(queue, _) => Self::LeakyQueue((**queue).clone()),
            Rungs::FixedWindow(window) => Self::FixedWindow(window.clone()),
            Rungs::StaggeredWindow(window) => Self::StaggeredWindow(window.clone()),
            Rungs::CalendarWindow(window) => Self::CalendarWindow(window.clone()),
            Rungs::SlidingWindow(window) => Self::SlidingWindow(window.clone()),
            Rungs::SlidingStrict(window) => Self::SlidingStrict(window.clone()),
            Rungs::SlidingLog(log) => Self::SlidingLog(log.clone()),
            Rungs::Concurrency(permits) => Self::Concurrency(permits.clone()),
            Rungs::Leased(leased) => Self::Leased(leased.clone()),
        })
    }

    pub(crate) fn as_dyn(&self) -> &dyn Algorithm {
        match self {
            Self::Bucket(meter) => meter,
            Self::LeakyQueue(queue) => queue,
            Self::FixedWindow(window) => window,
            Self::StaggeredWindow(window) => window,
            Self::CalendarWindow(window) => window,
            Self::SlidingWindow(window) => window,
            Self::SlidingStrict(window) => window,
            Self::SlidingLog(log) => log,
            Self::WarmUp(warming) => warming,
            Self::Concurrency(permits) => permits,
            Self::Leased(leased) => leased,
            Self::Custom(algorithm) => algorithm.as_ref(),
        }
    }

    /// The word form of the algorithm's state, where it has one: for its usual policies.
    pub(crate) fn as_packed(&self) -> Option<&dyn PackedAlgorithm> {
        match self {
            Self::Bucket(meter) => Some(meter),
            Self::LeakyQueue(queue) => Some(queue),
            Self::FixedWindow(window) => Some(window),
            Self::StaggeredWindow(window) => Some(window),
            Self::CalendarWindow(window) => Some(window),
            Self::SlidingWindow(window) => Some(window),
            Self::Concurrency(permits) => Some(permits),
            Self::SlidingStrict(_)
            | Self::SlidingLog(_)
            | Self::WarmUp(_)
            | Self::Leased(_)
            | Self::Custom(_) => None,
        }
    }

    /// What decides in a batch. Leases are decided by how many permits are in flight, and written
    /// down one by one when all is decided.
    pub(crate) fn batch_algorithm(&self) -> &dyn Algorithm {
        match self {
            Self::Leased(leased) => leased.permits(),
            _ => self.as_dyn(),
        }
    }

    /// Where permits are leased, also if they warm up: then with their full limit.
    pub(crate) fn as_leased(&self) -> Option<&LeasedConcurrency> {
        match self {
            Self::Leased(leased) => Some(leased),
            Self::WarmUp(warming) => match warming.rungs() {
                Rungs::Leased(leased) => Some(leased),
                _ => None,
            },
            _ => None,
        }
    }

    /// A log, also if it warms up: then with its full limit.
    pub(crate) fn as_log(&self) -> Option<&SlidingLog> {
        match self {
            Self::SlidingLog(log) => Some(log),
            Self::WarmUp(warming) => match warming.rungs() {
                Rungs::SlidingLog(log) => Some(log),
                _ => None,
            },
            _ => None,
        }
    }

    /// A log or leases that warm up: a store keeps the list as it does without a warm-up, and the life of
    /// the key beside it.
    pub(crate) fn as_warming_list(&self) -> Option<&WarmUpAlgorithm> {
        match self {
            Self::WarmUp(warming) if warming.rungs().is_list() => Some(warming),
            _ => None,
        }
    }

    /// True for queues, also if they warm up.
    #[cfg(feature = "until-ready")]
    pub(crate) fn is_queue(&self) -> bool {
        match self {
            Self::LeakyQueue(_) => true,
            Self::WarmUp(warming) => matches!(warming.rungs(), Rungs::LeakyQueue(..)),
            _ => false,
        }
    }

    /// The queue that has decided, by the limit that it has reported.
    #[cfg(feature = "until-ready")]
    pub(crate) fn queue_with_limit(&self, limit: u64) -> Option<LeakyQueue> {
        match self {
            Self::LeakyQueue(queue) => Some(queue.clone()),
            Self::WarmUp(warming) => warming.queue_with_limit(limit),
            _ => None,
        }
    }

    /// True where what was taken is in flight until it is given back.
    pub(crate) fn is_in_flight(&self) -> bool {
        match self {
            Self::Concurrency(_) | Self::Leased(_) => true,
            Self::WarmUp(warming) => warming.rungs().is_in_flight(),
            _ => false,
        }
    }

    /// True for windows that count: their state does not tell a charge from one that was made before
    /// a reset.
    pub(crate) fn is_counted_window(&self) -> bool {
        match self {
            Self::FixedWindow(_)
            | Self::StaggeredWindow(_)
            | Self::CalendarWindow(_)
            | Self::SlidingWindow(_)
            | Self::SlidingStrict(_) => true,
            Self::WarmUp(warming) => warming.rungs().is_counted_window(),
            _ => false,
        }
    }

    /// True where tokens can be charged early and lent. Everything else is always counted exactly.
    pub(crate) fn is_lendable(&self) -> bool {
        matches!(
            self,
            Self::Bucket(_)
                | Self::FixedWindow(_)
                | Self::StaggeredWindow(_)
                | Self::CalendarWindow(_)
                | Self::SlidingWindow(_)
        )
    }

    /// True where time pays charges in their order, so that giving one back has those behind it
    /// paid sooner.
    fn pays_in_order(&self) -> bool {
        match self {
            Self::Bucket(_) => true,
            Self::WarmUp(warming) => matches!(warming.rungs(), Rungs::Bucket(_)),
            _ => false,
        }
    }

    /// True where a charge can only be given back by what a store keeps beside the counter.
    pub(crate) fn needs_refund_record(&self) -> bool {
        self.pays_in_order() || self.is_counted_window()
    }

    /// The last instant at which anything can be given back of the charge whose stamp has `time_us`.
    pub(crate) fn refundable_until_us(&self, time_us: u64) -> u64 {
        let longer_us = match &*self.plain() {
            Self::SlidingWindow(window) => window.window_us(),
            Self::SlidingStrict(window) => window.subwindows_us(),
            _ => 0,
        };
        time_us.saturating_add(longer_us)
    }

    /// True where the state of this very policy fits one word.
    pub(crate) fn fits_word(&self) -> bool {
        match self {
            Self::Bucket(meter) => meter.fits_word(),
            Self::LeakyQueue(queue) => queue.fits_word(),
            Self::FixedWindow(window) => window.fits_word(),
            Self::StaggeredWindow(window) => window.fits_word(),
            Self::CalendarWindow(window) => window.fits_word(),
            Self::SlidingWindow(window) => window.fits_word(),
            // Its limits are bounded so that it always does.
            Self::Concurrency(_) => true,
            Self::SlidingStrict(_)
            | Self::SlidingLog(_)
            | Self::WarmUp(_)
            | Self::Leased(_)
            | Self::Custom(_) => false,
        }
    }
}
