// The rules for jobs that have compressed tensors, which travel as block-scaled integers
// (nic/wire/blocks.h). All functions are pure.
#pragma once

#include <string>

#include "appliance/control/job_spec.h"

namespace pbox::control {

// Checks the compressed tensors of a job whose mode and tensors are known. The error names the
// field, its value and the remedy.
Status check_compression(const JobSpec& spec);

// Returns the first of the job's compressed tensors; null if it has none.
const TensorSpec* first_compressed(const JobSpec& spec);

// Returns ", 3 of them compressed" for log messages; empty if none is.
std::string compressed_text(const JobSpec& spec);

}  // namespace pbox::control
