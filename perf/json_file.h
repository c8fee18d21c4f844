// A JSON file that a person or a script wrote, such as a model or a list of prices. Every error is
// a std::runtime_error that names the file, the field, its value and what is allowed:
//
//   const JsonFile file("model.json");
//   file.root().allow_only({"layers"});
//   for (const JsonField& layer : file.root().at("layers").list()) {
//     const double cost = layer.at("cost").number(0, 1e30);
//   }
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace pbox::perf {

// One value of a file. Valid as long as its JsonFile.
class JsonField {
 public:
  JsonField(const std::string& file, std::string path, const nlohmann::json& value)
      : file_(&file), path_(std::move(path)), value_(&value) {}

  // The functions below, except has(), throw if the value is missing or has another type or range.
  JsonField at(const std::string& key) const;
  bool has(const std::string& key) const;
  // Throws if the object has a member other than these. An unknown one is usually misspelt.
  void allow_only(std::initializer_list<const char*> keys) const;
  std::vector<JsonField> list() const;  // has at least one element
  std::string text(size_t bytes_max) const;
  double number(double least, double most) const;
  uint64_t whole_number(uint64_t least, uint64_t most) const;

  // Throws an error about this field. `remedy` says what is allowed.
  [[noreturn]] void refuse(const std::string& remedy) const;

 private:
  const std::string* file_;
  std::string path_;  // for example layers[2].cost; empty at the root
  const nlohmann::json* value_;
};

class JsonFile {
 public:
  explicit JsonFile(const std::string& path);
  JsonField root() const { return {path_, "", document_}; }

 private:
  std::string path_;
  nlohmann::json document_;
};

}  // namespace pbox::perf
