//! What every [`crate::ClusterStore`] must do.
