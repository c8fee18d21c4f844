// The parameter tensors of the models that exchanges are measured with. Only names and sizes:
// what crosses the wire does not depend on what the numbers mean.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace pbox::perf {

struct ModelTensor {
  std::string name;
  uint64_t elements;
};

// In the order in which torchvision's modules list their parameters: the forward order.
std::vector<ModelTensor> resnet50();  // He et al., 2015: 161 tensors, 25,557,032 parameters
std::vector<ModelTensor> vgg19();     // Simonyan, Zisserman, 2014: 38 tensors, 143,667,240

// "resnet50", "vgg19", or "1mib": one tensor of 262,144 floats.
Result<std::vector<ModelTensor>> model_by_name(std::string_view name);

uint64_t element_count(const std::vector<ModelTensor>& tensors);

// The same elements as a single tensor, as frameworks that fuse their gradients hold them.
std::vector<ModelTensor> as_one_buffer(const std::vector<ModelTensor>& tensors);

}  // namespace pbox::perf
