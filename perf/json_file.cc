#include "perf/json_file.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <sstream>
#include <stdexcept>

namespace pbox::perf {
namespace {

constexpr size_t kShownBytesMax = 60;

std::string shown(const nlohmann::json& value) {
  const std::string text = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  return text.size() <= kShownBytesMax ? text : text.substr(0, kShownBytesMax) + "...";
}

std::string as_text(double number) {
  std::ostringstream text;
  text << number;
  return text.str();
}

}  // namespace

JsonField JsonField::at(const std::string& key) const {
  if (!value_->is_object()) refuse("make it an object");
  const std::string path = path_.empty() ? key : path_ + "." + key;
  const auto found = value_->find(key);
  if (found == value_->end()) {
    throw std::runtime_error(*file_ + ": " + path + " is missing: add it");
  }
  return {*file_, path, *found};
}

bool JsonField::has(const std::string& key) const {
  return value_->is_object() && value_->contains(key);
}

void JsonField::allow_only(std::initializer_list<const char*> keys) const {
  if (!value_->is_object()) refuse("make it an object");
  for (const auto& [key, value] : value_->items()) {
    if (std::find(keys.begin(), keys.end(), key) != keys.end()) continue;
    std::string known;
    for (const char* one : keys) known += (known.empty() ? "" : ", ") + std::string(one);
    at(key).refuse("this member is unknown; use " + known);
  }
}

std::vector<JsonField> JsonField::list() const {
  if (!value_->is_array() || value_->empty()) refuse("make it a list with at least one element");
  std::vector<JsonField> fields;
  for (size_t index = 0; index < value_->size(); ++index) {
    fields.emplace_back(*file_, path_ + "[" + std::to_string(index) + "]", (*value_)[index]);
  }
  return fields;
}

std::string JsonField::text(size_t bytes_max) const {
  const auto* text = value_->get_ptr<const std::string*>();
  if (text == nullptr || text->empty() || text->size() > bytes_max) {
    refuse("use a string of 1 to " + std::to_string(bytes_max) + " bytes");
  }
  return *text;
}

double JsonField::number(double least, double most) const {
  const double number = value_->is_number() ? value_->get<double>() : NAN;
  if (!(number >= least && number <= most)) {
    refuse("use a number from " + as_text(least) + " to " + as_text(most));
  }
  return number;
}

uint64_t JsonField::whole_number(uint64_t least, uint64_t most) const {
  const bool fits = value_->is_number_unsigned() && value_->get<uint64_t>() >= least &&
                    value_->get<uint64_t>() <= most;
  if (!fits) {
    refuse("use a whole number from " + std::to_string(least) + " to " + std::to_string(most));
  }
  return value_->get<uint64_t>();
}

void JsonField::refuse(const std::string& remedy) const {
  throw std::runtime_error(*file_ + ": " + (path_.empty() ? "the document" : path_) + " is " +
                           shown(*value_) + ": " + remedy);
}

JsonFile::JsonFile(const std::string& path) : path_(path) {
  std::ifstream file(path);
  if (!file) {
    throw std::runtime_error(path + " cannot be read: " + std::strerror(errno) +
                             "; give the path of a JSON file");
  }
  try {
    document_ = nlohmann::json::parse(file);
  } catch (const nlohmann::json::exception& error) {
    throw std::runtime_error(path + " is not JSON: correct it (" + error.what() + ")");
  }
}

}  // namespace pbox::perf
