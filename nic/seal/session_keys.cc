#include "nic/seal/session_keys.h"

namespace pbox::seal {
namespace {

void append(std::string& context, uint64_t value) {
  for (int shift = 0; shift < 64; shift += 8) context += static_cast<char>(value >> shift & 0xff);
}

void append(std::string& context, const std::string& text) {
  append(context, uint64_t{text.size()});
  context += text;
}

}  // namespace

std::string exporter_context(const SessionName& name) {
  std::string context;
  append(context, name.box);
  append(context, name.job);
  append(context, name.part);
  append(context, name.rank);
  append(context, name.epoch);
  append(context, name.incarnation);
  append(context, static_cast<uint64_t>(name.suite));
  return context;
}

}  // namespace pbox::seal
