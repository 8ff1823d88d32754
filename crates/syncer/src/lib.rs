//! Plan and apply between one upstream and one downstream.
