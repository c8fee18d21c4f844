// Models from files, for measurements of any network. models.md describes the format, and
// model_from_torch.py writes it.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "perf/models.h"

namespace pbox::perf {

// Largest number of elements of all tensors together, because gradients carry 32-bit indices
// (peers/work.h).
inline constexpr uint64_t kModelElementsMax = UINT32_MAX;

// Returns the layers of the model in `path`, in forward order. An error names the file, the field,
// its value and the remedy.
Result<std::vector<ModelLayer>> layers_from_file(const std::string& path);

}  // namespace pbox::perf
