#include "perf/models.h"

#include <array>

#include "perf/model_file.h"

namespace pbox::perf {
namespace {

constexpr uint64_t kImageChannels = 3;
constexpr uint64_t kImageNetClasses = 1000;
constexpr uint64_t kImageNetSide = 224;

class LayerList {
 public:
  // `side`: height and width of the output image in pixels.
  void add_convolution(const std::string& convolution, const std::string& normalisation,
                       uint64_t inputs, uint64_t outputs, uint64_t kernel, uint64_t side) {
    const uint64_t weights = outputs * inputs * kernel * kernel;
    layers_.push_back({convolution,
                       static_cast<double>(weights * side * side),
                       {{convolution + ".weight", weights},
                        {normalisation + ".weight", outputs},
                        {normalisation + ".bias", outputs}}});
  }

  // `uses`: the number of times that a sample uses each weight. It is 1 in a dense layer, the
  // pixels in a convolution, and the words in a recurrent layer.
  void add_with_bias(const std::string& layer, uint64_t weights, uint64_t outputs,
                     uint64_t uses = 1) {
    layers_.push_back({layer,
                       static_cast<double>(weights * uses),
                       {{layer + ".weight", weights}, {layer + ".bias", outputs}}});
  }

  // An embedding has no multiply-adds: a row is looked up.
  void add_embedding(const std::string& layer, uint64_t words, uint64_t width) {
    layers_.push_back({layer, 0, {{layer + ".weight", words * width}}});
  }

  // Adds the four gates of one cell, which runs over `words` words.
  void add_lstm(const std::string& layer, uint64_t inputs, uint64_t width, uint64_t words) {
    const uint64_t gates = 4 * width;
    layers_.push_back({layer,
                       static_cast<double>(gates * (inputs + width) * words),
                       {{layer + ".i2h_weight", gates * inputs},
                        {layer + ".i2h_bias", gates},
                        {layer + ".h2h_weight", gates * width},
                        {layer + ".h2h_bias", gates}}});
  }

  std::vector<ModelLayer> take() { return std::move(layers_); }

 private:
  std::vector<ModelLayer> layers_;
};

// A bottleneck has three convolutions: 1x1 down to `width` channels, 3x3, and 1x1 up to four times
// `width`. The 3x3 convolution of a stage's first block halves the image, except in the first
// stage.
constexpr uint64_t kBottleneckExpansion = 4;

struct Bottleneck {
  std::string name;
  uint64_t inputs, width;
  uint64_t input_side, side;
  bool has_projection;
};

void add_bottleneck(LayerList& list, const Bottleneck& block) {
  const uint64_t outputs = block.width * kBottleneckExpansion;
  const std::string& name = block.name;
  list.add_convolution(name + ".conv1", name + ".bn1", block.inputs, block.width, 1,
                       block.input_side);
  list.add_convolution(name + ".conv2", name + ".bn2", block.width, block.width, 3, block.side);
  list.add_convolution(name + ".conv3", name + ".bn3", block.width, outputs, 1, block.side);
  if (block.has_projection) {
    list.add_convolution(name + ".downsample.0", name + ".downsample.1", block.inputs, outputs, 1,
                         block.side);
  }
}

}  // namespace

std::vector<ModelLayer> resnet50_layers() {
  constexpr std::array<int, 4> kBlockCounts = {3, 4, 6, 3};
  uint64_t channels = 64;
  uint64_t width = 64;
  uint64_t side = kImageNetSide / 2;
  LayerList list;
  list.add_convolution("conv1", "bn1", kImageChannels, channels, 7, side);
  side /= 2;  // pooling
  for (size_t stage = 0; stage < kBlockCounts.size(); ++stage) {
    for (int block = 0; block < kBlockCounts[stage]; ++block) {
      const uint64_t input_side = side;
      if (stage > 0 && block == 0) side /= 2;
      add_bottleneck(list,
                     {.name = "layer" + std::to_string(stage + 1) + "." + std::to_string(block),
                      .inputs = channels,
                      .width = width,
                      .input_side = input_side,
                      .side = side,
                      .has_projection = block == 0});
      channels = width * kBottleneckExpansion;
    }
    width *= 2;
  }
  list.add_with_bias("fc", kImageNetClasses * channels, kImageNetClasses);
  return list.take();
}

std::vector<ModelLayer> vgg19_layers() {
  struct Stage {
    int convolution_count;
    uint64_t channels;
  };
  constexpr std::array<Stage, 5> kStages = {{{2, 64}, {2, 128}, {4, 256}, {4, 512}, {4, 512}}};
  constexpr uint64_t kHidden = 4096;
  LayerList list;
  uint64_t inputs = kImageChannels;
  uint64_t side = kImageNetSide;
  int layer = 0;  // torchvision numbers convolutions, activations and poolings in one sequence
  for (const Stage& stage : kStages) {
    for (int convolution = 0; convolution < stage.convolution_count; ++convolution) {
      list.add_with_bias("features." + std::to_string(layer), stage.channels * inputs * 3 * 3,
                         stage.channels, side * side);
      inputs = stage.channels;
      layer += 2;
    }
    ++layer;
    side /= 2;
  }
  list.add_with_bias("classifier.0", kHidden * inputs * side * side, kHidden);
  list.add_with_bias("classifier.3", kHidden * kHidden, kHidden);
  list.add_with_bias("classifier.6", kImageNetClasses * kHidden, kImageNetClasses);
  return list.take();
}

std::vector<ModelLayer> resnet56_layers() {
  constexpr int kBlocksPerStage = 9;
  constexpr uint64_t kClasses = 10;
  uint64_t channels = 16;
  uint64_t side = 32;
  LayerList list;
  list.add_convolution("conv1", "bn1", kImageChannels, channels, 3, side);
  for (int stage = 0; stage < 3; ++stage) {
    const uint64_t width = uint64_t{16} << stage;
    if (stage > 0) side /= 2;
    for (int block = 0; block < kBlocksPerStage; ++block) {
      const std::string name = "layer" + std::to_string(stage + 1) + "." + std::to_string(block);
      list.add_convolution(name + ".conv1", name + ".bn1", channels, width, 3, side);
      list.add_convolution(name + ".conv2", name + ".bn2", width, width, 3, side);
      channels = width;
    }
  }
  list.add_with_bias("fc", kClasses * channels, kClasses);
  return list.take();
}

std::vector<ModelLayer> sockeye_layers() {
  constexpr uint64_t kOwnWords = 4;  // padding, unknown, begin, end
  constexpr uint64_t kSourceWords = 17'191 + kOwnWords;
  constexpr uint64_t kTargetWords = 7'709 + kOwnWords;
  constexpr uint64_t kWidth = 512;
  constexpr uint64_t kSentence = 25;
  LayerList list;
  list.add_embedding("source_embed", kSourceWords, kWidth);
  for (const char* direction : {"encoder.forward", "encoder.reverse"}) {
    list.add_lstm(direction, kWidth, kWidth / 2, kSentence);
  }
  list.add_lstm("encoder.1", kWidth, kWidth, kSentence);
  for (const char* state : {"0.cell", "0.hidden", "1.cell", "1.hidden"}) {
    list.add_with_bias("decoder.init." + std::string(state), kWidth * kWidth, kWidth);
  }
  list.add_embedding("target_embed", kTargetWords, kWidth);
  list.add_lstm("decoder.0", 2 * kWidth, kWidth, kSentence);  // inputs: the word and the context
  list.add_lstm("decoder.1", kWidth, kWidth, kSentence);
  // Attention scores every source word for every target word.
  list.add_with_bias("attention.source", kWidth * kWidth, kWidth, kSentence);
  list.add_with_bias("attention.query", kWidth * kWidth, kWidth, kSentence);
  list.add_with_bias("attention.score", kWidth, 1, kSentence * kSentence);
  list.add_with_bias("decoder.hidden", kWidth * 2 * kWidth, kWidth, kSentence);
  list.add_with_bias("target_output", kTargetWords * kWidth, kTargetWords, kSentence);
  return list.take();
}

std::vector<ModelLayer> gpt2_layers() {
  constexpr int kBlocks = 12;
  constexpr uint64_t kVocabulary = 50'257, kContext = 1024, kWidth = 768;
  LayerList list;
  list.add_embedding("wte", kVocabulary, kWidth);
  list.add_embedding("wpe", kContext, kWidth);
  for (int block = 0; block < kBlocks; ++block) {
    const std::string name = "h." + std::to_string(block) + ".";
    list.add_with_bias(name + "ln_1", kWidth, kWidth, kContext);
    list.add_with_bias(name + "attn.c_attn", kWidth * 3 * kWidth, 3 * kWidth, kContext);
    list.add_with_bias(name + "attn.c_proj", kWidth * kWidth, kWidth, kContext);
    list.add_with_bias(name + "ln_2", kWidth, kWidth, kContext);
    list.add_with_bias(name + "mlp.c_fc", kWidth * 4 * kWidth, 4 * kWidth, kContext);
    list.add_with_bias(name + "mlp.c_proj", 4 * kWidth * kWidth, kWidth, kContext);
  }
  // The output projection behind it has the weights of `wte`, which are used once per word.
  list.add_with_bias("ln_f", kWidth, kWidth, kContext * (kVocabulary + 1));
  return list.take();
}

Result<std::vector<ModelLayer>> layers_by_name(std::string_view name) {
  if (name == "resnet50") return resnet50_layers();
  if (name == "vgg19") return vgg19_layers();
  if (name == "sockeye") return sockeye_layers();
  if (name == "resnet56") return resnet56_layers();
  if (name == "gpt2") return gpt2_layers();
  if (name == "1mib") {
    return std::vector<ModelLayer>{{"buffer", 1, {{"buffer", (1u << 20) / sizeof(float)}}}};
  }
  if (name.ends_with(".json")) return layers_from_file(std::string(name));
  return Error{
      ErrorCode::kInvalidArgument,
      "model '" + std::string(name) +
          "' is unknown: use resnet50, vgg19, sockeye, resnet56, gpt2 or 1mib, or the path "
          "of a model file, which ends in .json"};
}

std::vector<ModelTensor> tensors_of(const std::vector<ModelLayer>& layers) {
  std::vector<ModelTensor> tensors;
  for (const ModelLayer& layer : layers) {
    tensors.insert(tensors.end(), layer.tensors.begin(), layer.tensors.end());
  }
  return tensors;
}

Result<std::vector<ModelTensor>> model_by_name(std::string_view name) {
  const auto layers = layers_by_name(name);
  if (!layers) return layers.error();
  return tensors_of(*layers);
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
