#include <catch2/catch.hpp>

#include "perf/models.h"
#include "tests/unit/perf/temporary_file.h"

namespace pbox::perf::model_file_test {
namespace {

std::string layer(const std::string& name, const std::string& cost, const std::string& tensors) {
  return R"({"name": ")" + name + R"(", "cost": )" + cost + R"(, "tensors": [)" + tensors + "]}";
}
std::string tensor(const std::string& name, const std::string& elements) {
  return R"({"name": ")" + name + R"(", "elements": )" + elements + "}";
}
std::string model(const std::string& layers) {
  return R"({"layers": [)" + layers + "]}";
}

// Returns the message of the error, without the path of the file; empty if there is none.
std::string refusal(const std::string& text) {
  const TemporaryFile file(text);
  const auto layers = layers_by_name(file.path());
  if (layers.ok()) return "";
  const std::string& message = layers.error().message;
  REQUIRE(message.starts_with(file.path()));
  return message.substr(file.path().size() + 2);
}

TEST_CASE("a model from a file has its layers in their order, with their tensors and costs") {
  const TemporaryFile file(model(
      layer("conv", "2.5e9", tensor("conv.weight", "9408") + "," + tensor("conv.bias", "64")) +
      "," + layer("fc", "0", tensor("fc.weight", "10"))));
  const auto layers = layers_by_name(file.path());
  REQUIRE(layers.ok());
  REQUIRE(layers->size() == 2);
  CHECK(layers->at(0).name == "conv");
  CHECK(layers->at(0).multiply_adds == 2.5e9);
  CHECK(layers->at(1).multiply_adds == 0);
  const auto tensors = model_by_name(file.path());
  REQUIRE(tensors.ok());
  REQUIRE(tensors->size() == 3);
  CHECK(tensors->at(1).name == "conv.bias");
  CHECK(element_count(*tensors) == 9408 + 64 + 10);
}

TEST_CASE("an error in a model file names the field, its value and the remedy") {
  const std::string one = tensor("a.weight", "4");
  CHECK(refusal(model(layer("a", "-1", one))) ==
        "layers[0].cost is -1: use a number from 0 to 1e+30");
  CHECK(refusal(model(layer("a", R"("high")", one))) ==
        R"(layers[0].cost is "high": use a number from 0 to 1e+30)");
  CHECK(refusal(model(layer("a", "1", tensor("a.weight", "0")))) ==
        "layers[0].tensors[0].elements is 0: use a whole number from 1 to 4294967295");
  CHECK(refusal(model(layer("a", "1", tensor("a.weight", "1.5")))) ==
        "layers[0].tensors[0].elements is 1.5: use a whole number from 1 to 4294967295");
  CHECK(refusal(model(layer("a", "1", ""))) ==
        "layers[0].tensors is []: make it a list with at least one element");
  CHECK(refusal(model("")) == "layers is []: make it a list with at least one element");
  CHECK(refusal("{}") == "layers is missing: add it");
  CHECK(refusal("[]") == "the document is []: make it an object");
  CHECK(refusal(model(R"({"name": "a", "tensors": []})")) == "layers[0].cost is missing: add it");
  CHECK(refusal(model(layer("", "1", one))) ==
        R"(layers[0].name is "": use a string of 1 to 240 bytes)");
  CHECK(refusal(R"({"layers": [], "layer": 1})") ==
        "layer is 1: this member is unknown; use layers");
  CHECK(refusal(model(layer("a", "0", one))) ==
        "layers[0].cost is 0: every layer has cost 0; give at least one a higher cost");
  CHECK(refusal("{").find("not JSON") != std::string::npos);
}

TEST_CASE("names in a model file are unique, and its size is bounded") {
  const std::string first = layer("a", "1", tensor("a.weight", "4"));
  CHECK(refusal(model(first + "," + layer("a", "1", tensor("b.weight", "4"))))
            .starts_with(R"(layers[1].name is "a": an earlier layer has the same name)"));
  CHECK(refusal(model(first + "," + layer("b", "1", tensor("a.weight", "4"))))
            .starts_with(
                R"(layers[1].tensors[0].name is "a.weight": an earlier tensor has the same name)"));
  const std::string large = tensor("large", "4294967295");
  CHECK(refusal(model(layer("b", "1", large))).empty());
  CHECK(refusal(model(first + "," + layer("b", "1", large))).find("4294967299 elements") !=
        std::string::npos);
}

TEST_CASE("a model file that is not there is named, with the reason") {
  const auto layers = layers_by_name("/no/such/model.json");
  REQUIRE_FALSE(layers.ok());
  CHECK(layers.error().message ==
        "/no/such/model.json cannot be read: No such file or directory; give the path of a JSON "
        "file");
}

}  // namespace
}  // namespace pbox::perf::model_file_test
