#include <catch2/catch.hpp>
#include <set>
#include <string>

#include "perf/models.h"

namespace pbox::perf {
namespace {

uint64_t elements_of(const std::vector<ModelTensor>& tensors, const std::string& name) {
  for (const ModelTensor& tensor : tensors) {
    if (tensor.name == name) return tensor.elements;
  }
  return 0;
}

size_t distinct_names(const std::vector<ModelTensor>& tensors) {
  std::set<std::string> names;
  for (const ModelTensor& tensor : tensors) names.insert(tensor.name);
  return names.size();
}

TEST_CASE("ResNet-50 has the published number of tensors and parameters") {
  const auto tensors = tensors_of(resnet50_layers());
  CHECK(tensors.size() == 161);
  CHECK(element_count(tensors) == 25'557'032);
  CHECK(distinct_names(tensors) == tensors.size());
  CHECK(tensors.front().name == "conv1.weight");
  CHECK(tensors.back().name == "fc.bias");
  CHECK(elements_of(tensors, "conv1.weight") == 64 * 3 * 7 * 7);
  CHECK(elements_of(tensors, "layer1.0.downsample.0.weight") == 256 * 64);
  CHECK(elements_of(tensors, "layer4.2.conv2.weight") == 512 * 512 * 9);
  CHECK(elements_of(tensors, "fc.weight") == 2048 * 1000);
}

TEST_CASE("VGG-19 has the published number of tensors and parameters") {
  const auto tensors = tensors_of(vgg19_layers());
  CHECK(tensors.size() == 38);
  CHECK(element_count(tensors) == 143'667'240);
  CHECK(distinct_names(tensors) == tensors.size());
  CHECK(elements_of(tensors, "features.0.weight") == 64 * 3 * 9);
  CHECK(elements_of(tensors, "features.34.weight") == 512 * 512 * 9);
  CHECK(elements_of(tensors, "classifier.0.weight") == 25088 * 4096);
}

double multiply_adds(const std::vector<ModelLayer>& layers) {
  double total = 0;
  for (const ModelLayer& layer : layers) total += layer.multiply_adds;
  return total;
}

TEST_CASE("layers cost the published number of multiplications") {
  // 4.09 and 19.63 giga multiply-adds, as torchvision states for its models.
  CHECK(multiply_adds(resnet50_layers()) == Approx(4.09e9).epsilon(0.005));
  CHECK(multiply_adds(vgg19_layers()) == Approx(19.63e9).epsilon(0.005));
}

TEST_CASE("ResNet-56 for CIFAR has the published number of parameters") {
  const auto tensors = tensors_of(resnet56_layers());
  CHECK(tensors.size() == 167);
  CHECK(element_count(tensors) == Approx(0.85e6).epsilon(0.01));
}

TEST_CASE("GPT-2 has the published number of parameters, and its output projection none") {
  const auto tensors = tensors_of(gpt2_layers());
  CHECK(tensors.size() == 148);
  CHECK(element_count(tensors) == 124'439'808);
}

TEST_CASE("a third of Sockeye is the layer that is needed first and whose gradient comes last") {
  const auto layers = sockeye_layers();
  const auto all = static_cast<double>(element_count(tensors_of(layers)));
  CHECK(layers.front().name == "source_embed");
  CHECK(static_cast<double>(element_count(layers.front().tensors)) / all ==
        Approx(0.32).margin(0.02));
}

TEST_CASE("one buffer holds the same elements as the tensors") {
  const auto tensors = tensors_of(resnet50_layers());
  const auto buffer = as_one_buffer(tensors);
  REQUIRE(buffer.size() == 1);
  CHECK(buffer[0].elements == element_count(tensors));
}

TEST_CASE("models are found by name, and an unknown name lists the known ones") {
  REQUIRE(model_by_name("1mib").ok());
  CHECK(element_count(*model_by_name("1mib")) == 262'144);
  CHECK(model_by_name("resnet50")->size() == 161);
  CHECK(model_by_name("vgg19")->size() == 38);
  CHECK(element_count(*model_by_name("sockeye")) == element_count(tensors_of(sockeye_layers())));
  CHECK(model_by_name("resnet56")->size() == 167);
  const auto unknown = model_by_name("alexnet");
  REQUIRE_FALSE(unknown.ok());
  CHECK(unknown.error().message.find("resnet50, vgg19, sockeye, resnet56, gpt2 or 1mib") !=
        std::string::npos);
}

}  // namespace
}  // namespace pbox::perf
