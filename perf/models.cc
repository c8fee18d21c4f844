#include "perf/models.h"

#include <array>

namespace pbox::perf {
namespace {

constexpr uint64_t kImageChannels = 3;
constexpr uint64_t kImageNetClasses = 1000;

class TensorList {
 public:
  void add(std::string name, uint64_t elements) { tensors_.push_back({std::move(name), elements}); }

  // A convolution without a bias and the batch normalisation behind it.
  void add_convolution(const std::string& convolution, const std::string& normalisation,
                       uint64_t inputs, uint64_t outputs, uint64_t kernel) {
    add(convolution + ".weight", outputs * inputs * kernel * kernel);
    add(normalisation + ".weight", outputs);
    add(normalisation + ".bias", outputs);
  }

  void add_with_bias(const std::string& layer, uint64_t weights, uint64_t outputs) {
    add(layer + ".weight", weights);
    add(layer + ".bias", outputs);
  }

  std::vector<ModelTensor> take() { return std::move(tensors_); }

 private:
  std::vector<ModelTensor> tensors_;
};

// 1x1 down to `width` channels, 3x3, 1x1 up to four times as many.
constexpr uint64_t kBottleneckExpansion = 4;

void add_bottleneck(TensorList& list, const std::string& block, uint64_t inputs, uint64_t width,
                    bool has_projection) {
  const uint64_t outputs = width * kBottleneckExpansion;
  list.add_convolution(block + ".conv1", block + ".bn1", inputs, width, 1);
  list.add_convolution(block + ".conv2", block + ".bn2", width, width, 3);
  list.add_convolution(block + ".conv3", block + ".bn3", width, outputs, 1);
  if (has_projection) {
    list.add_convolution(block + ".downsample.0", block + ".downsample.1", inputs, outputs, 1);
  }
}

}  // namespace

std::vector<ModelTensor> resnet50() {
  constexpr std::array<int, 4> kBlockCounts = {3, 4, 6, 3};
  uint64_t channels = 64;
  uint64_t width = 64;
  TensorList list;
  list.add_convolution("conv1", "bn1", kImageChannels, channels, 7);
  for (size_t stage = 0; stage < kBlockCounts.size(); ++stage) {
    for (int block = 0; block < kBlockCounts[stage]; ++block) {
      const std::string name = "layer" + std::to_string(stage + 1) + "." + std::to_string(block);
      add_bottleneck(list, name, channels, width, block == 0);
      channels = width * kBottleneckExpansion;
    }
    width *= 2;
  }
  list.add_with_bias("fc", kImageNetClasses * channels, kImageNetClasses);
  return list.take();
}

std::vector<ModelTensor> vgg19() {
  struct Stage {
    int convolution_count;
    uint64_t channels;
  };
  constexpr std::array<Stage, 5> kStages = {{{2, 64}, {2, 128}, {4, 256}, {4, 512}, {4, 512}}};
  constexpr uint64_t kHidden = 4096;
  constexpr uint64_t kPooledSide = 7;
  TensorList list;
  uint64_t inputs = kImageChannels;
  int layer = 0;  // torchvision numbers convolutions, activations and poolings alike
  for (const Stage& stage : kStages) {
    for (int convolution = 0; convolution < stage.convolution_count; ++convolution) {
      list.add_with_bias("features." + std::to_string(layer), stage.channels * inputs * 3 * 3,
                         stage.channels);
      inputs = stage.channels;
      layer += 2;
    }
    ++layer;
  }
  list.add_with_bias("classifier.0", kHidden * inputs * kPooledSide * kPooledSide, kHidden);
  list.add_with_bias("classifier.3", kHidden * kHidden, kHidden);
  list.add_with_bias("classifier.6", kImageNetClasses * kHidden, kImageNetClasses);
  return list.take();
}

Result<std::vector<ModelTensor>> model_by_name(std::string_view name) {
  if (name == "resnet50") return resnet50();
  if (name == "vgg19") return vgg19();
  if (name == "1mib") return std::vector<ModelTensor>{{"buffer", (1u << 20) / sizeof(float)}};
  return Error{ErrorCode::kInvalidArgument,
               "model '" + std::string(name) + "' is unknown: use resnet50, vgg19 or 1mib"};
}

uint64_t element_count(const std::vector<ModelTensor>& tensors) {
  uint64_t total = 0;
  for (const ModelTensor& tensor : tensors) total += tensor.elements;
  return total;
}

std::vector<ModelTensor> as_one_buffer(const std::vector<ModelTensor>& tensors) {
  return {{"buffer", element_count(tensors)}};
}

}  // namespace pbox::perf
