#include "perf/model_file.h"

#include <set>
#include <stdexcept>

#include "base/limits.h"
#include "perf/json_file.h"

namespace pbox::perf {
namespace {

constexpr double kCostMax = 1e30;
// Ranks append a tensor's number to the name of its layer.
constexpr size_t kLayerNameBytesMax = limits::kTensorNameBytesMax - 16;

ModelLayer layer_from(const JsonField& field, std::set<std::string>& names) {
  field.allow_only({"name", "cost", "tensors"});
  ModelLayer layer{
      field.at("name").text(kLayerNameBytesMax), field.at("cost").number(0, kCostMax), {}};
  if (!names.insert("layer " + layer.name).second) {
    field.at("name").refuse("an earlier layer has the same name; give each layer its own name");
  }
  for (const JsonField& one : field.at("tensors").list()) {
    one.allow_only({"name", "elements"});
    layer.tensors.push_back({one.at("name").text(limits::kTensorNameBytesMax),
                             one.at("elements").whole_number(1, kModelElementsMax)});
    if (!names.insert("tensor " + layer.tensors.back().name).second) {
      one.at("name").refuse("an earlier tensor has the same name; give each tensor its own name");
    }
  }
  return layer;
}

std::vector<ModelLayer> read(const std::string& path) {
  const JsonFile file(path);
  file.root().allow_only({"layers"});
  const JsonField list = file.root().at("layers");
  std::vector<ModelLayer> layers;
  std::set<std::string> names;
  double cost = 0;
  uint64_t elements = 0;
  size_t tensors = 0;
  for (const JsonField& field : list.list()) {
    layers.push_back(layer_from(field, names));
    cost += layers.back().multiply_adds;
    elements += element_count(layers.back().tensors);
    tensors += layers.back().tensors.size();
    if (elements > kModelElementsMax) {
      field.refuse("the tensors up to here have " + std::to_string(elements) +
                   " elements; a model may have at most " + std::to_string(kModelElementsMax));
    }
    if (tensors > limits::kTensorsPerJobMax) {
      field.refuse("a model may have at most " + std::to_string(limits::kTensorsPerJobMax) +
                   " tensors");
    }
  }
  if (cost == 0) {
    list.list().front().at("cost").refuse(
        "every layer has cost 0; give at least one a higher cost");
  }
  return layers;
}

}  // namespace

Result<std::vector<ModelLayer>> layers_from_file(const std::string& path) {
  try {
    return read(path);
  } catch (const std::runtime_error& error) {
    return Error{ErrorCode::kInvalidArgument, error.what()};
  }
}

}  // namespace pbox::perf
