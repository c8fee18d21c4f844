// The models that exchanges are measured with, layer by layer in forward order: the names and sizes
// of their parameter tensors, and what a layer costs to compute. The traffic does not
// depend on what the numbers mean.
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

// A layer: the next iteration waits for all of it, and backward computes its gradients at once.
struct ModelLayer {
  std::string name;
  double multiply_adds;  // multiply-adds of one forward pass over one sample
  std::vector<ModelTensor> tensors;
};

// He et al., 2015, as torchvision has it, for 224 x 224 images; a layer is a convolution with the
// normalisation behind it. 161 tensors, 25,557,032 parameters, 4.09e9 multiply-adds.
std::vector<ModelLayer> resnet50_layers();
// Simonyan, Zisserman, 2014, as torchvision has it, for 224 x 224 images: 38 tensors, 143,667,240
// parameters, 1.96e10 multiply-adds.
std::vector<ModelLayer> vgg19_layers();
// He et al., 2015, section 4.2, for CIFAR's 32 x 32 images, n = 9, shortcuts without parameters:
// 167 tensors, 855,770 parameters.
std::vector<ModelLayer> resnet56_layers();
// Sockeye 1.5 (Hieber et al., 2017) as the authors of P3 train it (their example/sockeye): two
// layers of LSTM each side, 512 wide, the first of the encoder in both directions, MLP attention,
// embeddings of 512, for IWSLT'15 English to Vietnamese: 17,191 and 7,709 words, and Sockeye's own
// four. Sentences of 25 words.
std::vector<ModelLayer> sockeye_layers();

// "resnet50", "vgg19", "sockeye", "resnet56", or "1mib": one tensor of 262,144 floats.
Result<std::vector<ModelLayer>> layers_by_name(std::string_view name);

// The tensors of all layers, in forward order.
std::vector<ModelTensor> tensors_of(const std::vector<ModelLayer>& layers);
Result<std::vector<ModelTensor>> model_by_name(std::string_view name);

uint64_t element_count(const std::vector<ModelTensor>& tensors);

// The same elements as a single tensor, as frameworks that fuse their gradients hold them.
std::vector<ModelTensor> as_one_buffer(const std::vector<ModelTensor>& tensors);

}  // namespace pbox::perf
