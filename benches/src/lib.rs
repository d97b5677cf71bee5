//! Engines side by side, beside their raw stores and other servers.
