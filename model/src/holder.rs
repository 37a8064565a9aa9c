//! holder
