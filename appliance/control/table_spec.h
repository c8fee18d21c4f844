// The rules for jobs that have tables. A table is a tensor in rows, of which each rank pushes some.
// All functions are pure.
#pragma once

#include "appliance/control/job_spec.h"

namespace pbox::control {

// Checks the tables of a job whose mode, numerics, optimizer and tensors are known. The error names
// the field, its value and the remedy.
Status check_tables(const JobSpec& spec);

// Returns the first of the job's tables; null if it has none.
const TensorSpec* first_table(const JobSpec& spec);

}  // namespace pbox::control
