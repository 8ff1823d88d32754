//! Reading and writing stored objects: get, list, and the write pipeline.

mod all_clusters;
mod conflicts;
mod continue_token;
mod converter;
mod find;
mod lifecycle_items;
mod list;
mod range;
mod slices;
mod template_admission;
mod tree;
mod view_items;
mod view_list;
pub(crate) mod write_pipeline;
mod writer;

pub(crate) use all_clusters::{AllClusterEvents, all_cluster_slices, marked_event, read_all_clusters};
pub(crate) use conflicts::{ConflictRetry, ObjectLocks};
pub(crate) use converter::ObjectConverter;
pub(crate) use find::{FoundObject, ReadContext};
pub(crate) use lifecycle_items::{LifecycleItems, waiting_slices};
pub(crate) use list::{ListResult, read_failed, read_list, snapshot, wait_for_resource_version, wait_for_revision};
pub(crate) use slices::ObjectSlices;
pub use template_admission::TemplatedObject;
pub(crate) use template_admission::admit_from_template;
pub(crate) use tree::{stored_tree, tree};
pub(crate) use view_items::{ViewMarks, marked_for};
pub(crate) use view_list::{check_visible, read_view, view_slices};
pub(crate) use write_pipeline::PipelineContext;
pub(crate) use writer::{CreateOrUpdate, ManagerRecording, ObjectChange, ObjectWriter, WRITE_ATTEMPTS, WriteResult};
