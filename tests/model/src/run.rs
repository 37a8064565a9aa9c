//! Explores, and says what was found.
