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
  const auto tensors = resnet50();
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
  const auto tensors = vgg19();
  CHECK(tensors.size() == 38);
  CHECK(element_count(tensors) == 143'667'240);
  CHECK(distinct_names(tensors) == tensors.size());
  CHECK(elements_of(tensors, "features.0.weight") == 64 * 3 * 9);
  CHECK(elements_of(tensors, "features.34.weight") == 512 * 512 * 9);
  CHECK(elements_of(tensors, "classifier.0.weight") == 25088 * 4096);
}

TEST_CASE("one buffer holds the same elements as the tensors") {
  const auto buffer = as_one_buffer(resnet50());
  REQUIRE(buffer.size() == 1);
  CHECK(buffer[0].elements == element_count(resnet50()));
}

TEST_CASE("models are found by name, and an unknown name lists the known ones") {
  REQUIRE(model_by_name("1mib").ok());
  CHECK(element_count(*model_by_name("1mib")) == 262'144);
  CHECK(model_by_name("resnet50")->size() == 161);
  CHECK(model_by_name("vgg19")->size() == 38);
  const auto unknown = model_by_name("alexnet");
  REQUIRE_FALSE(unknown.ok());
  CHECK(unknown.error().message.find("resnet50, vgg19 or 1mib") != std::string::npos);
}

}  // namespace
}  // namespace pbox::perf
