//! Redis and Valkey servers of a test's own.
//!
//! [`launch`] says which program is started and how, [`process`] runs one server, and [`cluster`] runs six as a
//! cluster. Nothing here speaks the protocol beyond what starting a server needs.

pub mod cluster;
pub mod launch;
pub mod process;
