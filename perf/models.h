// The models whose exchanges are measured, layer by layer in forward order: the names and sizes of
// the parameter tensors, and the computing that a layer needs. The values of the parameters do not
// affect the traffic, so models have none.
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

// A layer of a model. Backward computes all gradients of a layer at once, and the next iteration
// waits for all of them.
struct ModelLayer {
  std::string name;
  double multiply_adds;  // multiply-adds of one forward pass over one sample
  std::vector<ModelTensor> tensors;
};

// Returns ResNet-50 (He et al., 2015) as torchvision has it, for 224 x 224 images. A layer is a
// convolution and the normalisation behind it. 161 tensors, 25,557,032 parameters, 4.09e9
// multiply-adds.
std::vector<ModelLayer> resnet50_layers();
// Returns VGG-19 (Simonyan, Zisserman, 2014) as torchvision has it, for 224 x 224 images.
// 38 tensors, 143,667,240 parameters, 1.96e10 multiply-adds.
std::vector<ModelLayer> vgg19_layers();
// Returns ResNet-56 (He et al., 2015, section 4.2, n = 9, shortcuts without parameters) for CIFAR's
// 32 x 32 images. 167 tensors, 855,770 parameters.
std::vector<ModelLayer> resnet56_layers();
// Returns Sockeye 1.5 (Hieber et al., 2017) as the authors of P3 train it in their example/sockeye.
// The encoder and the decoder have two LSTM layers each, 512 wide; the encoder's first layer runs
// in both directions. Attention is an MLP and embeddings are 512 wide. The data is IWSLT'15,
// English to Vietnamese: 17,191 and 7,709 words, plus four of Sockeye's own. A sentence has 25
// words.
std::vector<ModelLayer> sockeye_layers();
// Returns GPT-2 with 124M parameters (Radford et al., 2019), for 1,024 words. 148 tensors,
// 124,439,808 parameters: the output projection shares the embedding's.
std::vector<ModelLayer> gpt2_layers();

// Help of the option --model, for scenarios that accept every name below.
inline constexpr char kModelHelp[] =
    "resnet50, vgg19, sockeye, resnet56, gpt2, 1mib, or a model file, whose name ends in .json";

// Accepts "resnet50", "vgg19", "sockeye", "resnet56", "gpt2" and "1mib", which is one tensor of
// 262,144 floats, and the path of a model file (model_file.h), which ends in ".json".
Result<std::vector<ModelLayer>> layers_by_name(std::string_view name);

// Returns the tensors of all layers, in forward order.
std::vector<ModelTensor> tensors_of(const std::vector<ModelLayer>& layers);
Result<std::vector<ModelTensor>> model_by_name(std::string_view name);

uint64_t element_count(const std::vector<ModelTensor>& tensors);

// Returns one tensor with the same number of elements, as in frameworks that fuse their gradients.
std::vector<ModelTensor> as_one_buffer(const std::vector<ModelTensor>& tensors);

}  // namespace pbox::perf
