//! Which algorithm a policy has, and what stores need to know of it.

use std::borrow::Cow;
use std::sync::Arc;

use crate::algorithm::Algorithm;
use crate::algorithm::calendar_window::CalendarWindow;
use crate::algorithm::debt::Meter;
use crate::algorithm::fixed_window::FixedWindow;
use crate::algorithm::leaky_queue::LeakyQueue;
use crate::algorithm::sliding_strict::SlidingStrict;
use crate::algorithm::sliding_window::SlidingWindow;
use crate::algorithm::staggered_window::StaggeredWindow;
use crate::algorithm::word::Packed;

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
    Custom(Arc<dyn Algorithm>),
}

impl Kind {
    /// What counts for this very key. The same for all, but for staggered windows.
    #[inline]
    pub(crate) fn for_key(&self, key: &[u8]) -> Cow<'_, Self> {
        match self {
            Self::StaggeredWindow(window) => Cow::Owned(Self::StaggeredWindow(window.for_key(key))),
            _ => Cow::Borrowed(self),
        }
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
            Self::Custom(algorithm) => algorithm.as_ref(),
        }
    }

    /// The word form of the algorithm's state, where it has one: for its usual policies.
    pub(crate) fn as_packed(&self) -> Option<&dyn Packed> {
        match self {
            Self::Bucket(meter) => Some(meter),
            Self::LeakyQueue(queue) => Some(queue),
            Self::FixedWindow(window) => Some(window),
            Self::StaggeredWindow(window) => Some(window),
            Self::CalendarWindow(window) => Some(window),
            Self::SlidingWindow(window) => Some(window),
            Self::SlidingStrict(_) | Self::Custom(_) => None,
        }
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
            Self::SlidingStrict(_) | Self::Custom(_) => false,
        }
    }
}
