// Fields of the usual kinds: numbers, choices, folders. Private to config/.
#pragma once

#include <algorithm>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "config/address.h"
#include "config/fields.h"
#include "config/value.h"

namespace pbox::config {

constexpr uint64_t kPortMax = 65'535;

enum class Reload { kNo, kYes };

template <typename Get>
using ValueOf = std::remove_reference_t<std::invoke_result_t<Get, Config&>>;

// `get` maps a Config& to the member. Printing calls it on a copy, whose cost does not matter here.
template <typename Get>
Field number(std::string key, Get get, uint64_t min, uint64_t max, Reload reload,
             std::string help) {
  using Value = ValueOf<Get>;
  static_assert(std::is_unsigned_v<Value>);
  return Field{std::move(key),
               std::move(help),
               "a whole number from " + std::to_string(min) + " to " + std::to_string(max),
               reload == Reload::kYes,
               [get](const Config& config) {
                 Config copy = config;
                 return std::to_string(get(copy));
               },
               [get, min, max](Config& config, const std::string& text) {
                 const auto value = read_number(text);
                 if (!value || *value < min || *value > max) return false;
                 get(config) = static_cast<Value>(*value);
                 return true;
               }};
}

template <typename Get>
Field fraction(std::string key, Get get, double min, double max, Reload reload, std::string help) {
  return Field{std::move(key),
               std::move(help),
               "a number from " + print_fraction(min) + " to " + print_fraction(max),
               reload == Reload::kYes,
               [get](const Config& config) {
                 Config copy = config;
                 return print_fraction(get(copy));
               },
               [get, min, max](Config& config, const std::string& text) {
                 const auto value = read_fraction(text);
                 if (!value || *value < min || *value > max) return false;
                 get(config) = *value;
                 return true;
               }};
}

// The first word listed for a value is the one that is printed.
template <typename Value>
using Words = std::vector<std::pair<std::string, Value>>;

template <typename Get>
Field choice(std::string key, Get get, Words<ValueOf<Get>> words, size_t shown_count, Reload reload,
             std::string help) {
  std::string accepts = shown_count == 1 ? "only " : "one of ";
  for (size_t i = 0; i < shown_count; ++i) accepts += (i == 0 ? "" : ", ") + words[i].first;
  return Field{std::move(key),
               std::move(help),
               std::move(accepts),
               reload == Reload::kYes,
               [get, words](const Config& config) {
                 Config copy = config;
                 for (const auto& [word, value] : words) {
                   if (value == get(copy)) return word;
                 }
                 return std::string();
               },
               [get, words](Config& config, const std::string& text) {
                 for (const auto& [word, value] : words) {
                   if (word != text) continue;
                   get(config) = value;
                   return true;
                 }
                 return false;
               }};
}

template <typename Get>
Field boolean(std::string key, Get get, std::string help) {
  const Words<bool> words = {{"true", true}, {"false", false}, {"on", true}, {"off", false}};
  return choice(std::move(key), get, words, 2, Reload::kNo, std::move(help));
}

template <typename Get>
Field auto_or_off(std::string key, Get get, std::string help) {
  const Words<OnOffAuto> words = {{"auto", OnOffAuto::kAuto}, {"off", OnOffAuto::kOff}};
  return choice(std::move(key), get, words, words.size(), Reload::kNo, std::move(help));
}

// Names reach metrics labels and log lines, so characters that need escaping there are refused.
inline bool is_box_name(const std::string& text) {
  constexpr size_t kNameBytesMax = 64;  // HOST_NAME_MAX
  if (text.size() > kNameBytesMax) return false;
  for (const char c : text) {
    const bool is_word = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (!is_word && c != '-' && c != '_' && c != '.') return false;
  }
  return true;
}

inline bool is_plain(const std::string& text) {
  return std::none_of(text.begin(), text.end(),
                      [](char c) { return static_cast<unsigned char>(c) < ' ' || c == 0x7f; });
}

template <typename Get>
Field address(std::string key, Get get, std::string help) {
  return Field{std::move(key),
               std::move(help),
               "an IPv4 or IPv6 address, such as 10.0.0.7 or ::1",
               false,
               [get](const Config& config) {
                 Config copy = config;
                 return get(copy);
               },
               [get](Config& config, const std::string& text) {
                 if (!is_address(text)) return false;
                 get(config) = text;
                 return true;
               }};
}

// An absolute path of a file or folder; an empty text names none.
template <typename Get>
Field file_path(std::string key, Get get, std::string help) {
  return Field{std::move(key),
               std::move(help),
               "an absolute path, or nothing",
               false,
               [get](const Config& config) {
                 Config copy = config;
                 return get(copy);
               },
               [get](Config& config, const std::string& text) {
                 if (!is_plain(text) || (!text.empty() && !text.starts_with('/'))) return false;
                 get(config) = text;
                 return true;
               }};
}

template <typename Get>
Field folder(std::string key, Get get, std::string help) {
  return Field{std::move(key),
               std::move(help),
               "an absolute path, or none",
               false,
               [get](const Config& config) {
                 Config copy = config;
                 return get(copy).empty() ? std::string("none") : get(copy);
               },
               [get](Config& config, const std::string& text) {
                 if (!is_plain(text) || (text != "none" && !text.starts_with('/'))) return false;
                 get(config) = text == "none" ? "" : text;
                 return true;
               }};
}

// The member `m` of section `s`; a macro because a pointer to a nested member does not exist.
// NOLINTNEXTLINE(bugprone-macro-parentheses): a member's name takes no parentheses.
#define PBOX_MEMBER(s, m) [](Config& config) -> decltype(config.s.m)& { return config.s.m; }

}  // namespace pbox::config
