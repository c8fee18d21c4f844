#include "config/tenant_list.h"

#include <algorithm>
#include <cstdint>

#include "config/field_makers.h"
#include "config/value.h"

namespace pbox::config {
namespace {

constexpr uint64_t kWeightMax = 1'000;
constexpr uint64_t kBoundMax = 1'000'000;
constexpr uint64_t kMemoryMibMax = 1u << 30;

struct Bound {
  std::string name;
  uint64_t max;
  uint64_t (*get)(const Tenant&);
  void (*set)(Tenant&, uint64_t);
};

// Listed in the order in which they are printed. A value is at least 1: a tenant has no bound where
// none is written.
#define PBOX_BOUND(member, max)                                                 \
  Bound {                                                                       \
#member, max, [](const Tenant& tenant) -> uint64_t { return tenant.member; }, \
        [](Tenant& tenant, uint64_t value) {                    \
          tenant.member = static_cast<decltype(tenant.member)>(value); \
        } \
  }
const Bound kBounds[] = {PBOX_BOUND(weight, kWeightMax), PBOX_BOUND(jobs, kBoundMax),
                         PBOX_BOUND(memory_mib, kMemoryMibMax), PBOX_BOUND(sessions, kBoundMax),
                         PBOX_BOUND(connections, kBoundMax)};

// Adds what the word says to `tenant`, or returns the word's fault.
std::string take_word(const std::string& word, Tenant& tenant) {
  const size_t equals = word.find('=');
  const auto bound = std::find_if(std::begin(kBounds), std::end(kBounds), [&](const Bound& each) {
    return equals != std::string::npos && each.name == word.substr(0, equals);
  });
  if (bound == std::end(kBounds)) {
    return word +
           " is not understood; write weight=, jobs=, memory_mib=, sessions= or "
           "connections=, each with a number";
  }
  const auto value = read_number(word.substr(equals + 1));
  if (!value || *value == 0 || *value > bound->max) {
    return word + " is not accepted; give a number from 1 to " + std::to_string(bound->max) +
           ", or remove " + bound->name;
  }
  bound->set(tenant, *value);
  return {};
}

std::string fault_of_name(const std::string& name, const std::vector<Tenant>& before) {
  if (name != "*" && !is_box_name(name)) {
    return "begin with the tenant's name, at most 64 letters, digits, '-', '_' and '.', or with "
           "'*' for each tenant that is not listed";
  }
  const bool is_known = std::any_of(before.begin(), before.end(),
                                    [&](const Tenant& tenant) { return tenant.name == name; });
  return is_known ? "the tenant is listed twice; remove one of the items" : "";
}

}  // namespace

TenantsRead read_tenants(const std::string& text) {
  TenantsRead read;
  if (trim(text).empty()) return read;
  for (const std::string& item : split(text, ";")) {
    const auto words = words_of(item);
    if (words.empty()) {
      read.faults.push_back("an item is empty; remove a ';'");
      continue;
    }
    const auto note = [&](const std::string& fault) {
      if (!fault.empty()) read.faults.push_back(words[0] + ": " + fault);
    };
    Tenant tenant{.name = words[0]};
    note(fault_of_name(tenant.name, read.tenants));
    for (size_t index = 1; index < words.size(); ++index) note(take_word(words[index], tenant));
    read.tenants.push_back(std::move(tenant));
  }
  return read;
}

std::string print_tenants(const std::vector<Tenant>& tenants) {
  const Tenant unbounded;
  std::string text;
  for (const Tenant& tenant : tenants) {
    text += (text.empty() ? "" : "; ") + tenant.name;
    for (const Bound& bound : kBounds) {
      const uint64_t value = bound.get(tenant);
      if (value != bound.get(unbounded)) text += ' ' + bound.name + '=' + std::to_string(value);
    }
  }
  return text;
}

}  // namespace pbox::config
