//! Frame memory: slots, freelists and bursts.
