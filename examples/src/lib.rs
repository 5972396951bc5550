//! The examples are the files beside this folder; this library is empty.
