#include "nic/wire/sync.h"

#include <charconv>
#include <optional>

namespace pbox::wire {
namespace {

Error invalid_model(std::string_view text, const std::string& why) {
  return {ErrorCode::kInvalidArgument, "sync '" + std::string(text) + "': " + why};
}

template <typename Number>
std::optional<Number> number_in(std::string_view word) {
  Number value{};
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size() || word.empty()) return std::nullopt;
  return value;
}

std::string to_text(float value) {
  char text[32];
  const auto [end, error] = std::to_chars(text, text + sizeof(text), value);
  return error == std::errc() ? std::string(text, end) : "nan";
}

// Removes the first word from `rest` and returns it.
std::string_view take_word(std::string_view& rest) {
  const size_t at = rest.find(':');
  const std::string_view word = rest.substr(0, at);
  rest = at == std::string_view::npos ? std::string_view() : rest.substr(at + 1);
  return word;
}

std::optional<SyncModel> model_named(std::string_view name) {
  for (uint8_t model = 0; model < kSyncModelCount; ++model) {
    if (name == kSyncModelNames[model]) return static_cast<SyncModel>(model);
  }
  return std::nullopt;
}

// Takes a word that only kDrop has: its grace, which is "auto" or milliseconds as in 500ms, or
// "next", with which late pushes count. Returns false if the word is neither.
bool take_of_drop(std::string_view word, SyncSpec& spec) {
  if (word == "auto") {
    spec.grace_ms = kGraceAuto;
    return true;
  }
  if (word == "next") {
    spec.counts_late = true;
    return true;
  }
  if (!word.ends_with("ms")) return false;
  const auto value = number_in<uint32_t>(word.substr(0, word.size() - 2));
  if (!value || *value == kGraceAuto) return false;
  spec.grace_ms = *value;
  return true;
}

// Takes one of the words that a spec of any model may end with. Returns false if the word is none
// of them.
bool take_choice(std::string_view word, SyncSpec& spec) {
  if (word == "gradient") {
    spec.by_gradient = true;
  } else if (word == "soft" || word == "lazy") {
    spec.release = word == "lazy" ? Release::kLazy : Release::kSoft;
  } else if (word == "fresh" || word == "cached" || word == "answered") {
    spec.reads = word == "fresh"    ? Reads::kFresh
                 : word == "cached" ? Reads::kCached
                                    : Reads::kAnswered;
  } else {
    return false;
  }
  return true;
}

// Takes the number, or the bounds, that follow the model's name.
bool take_count(std::string_view word, SyncSpec& spec) {
  if (spec.model == SyncModel::kAdaptive) {
    const size_t dash = word.find('-');
    const auto least = number_in<uint32_t>(word.substr(0, dash));
    const auto most =
        dash == std::string_view::npos ? least : number_in<uint32_t>(word.substr(dash + 1));
    if (!least || !most) return false;
    spec.staleness_min = dash == std::string_view::npos ? 0 : *least;
    spec.staleness = *most;
    return true;
  }
  const auto value = number_in<uint32_t>(word);
  if (!value) return false;
  (spec.model == SyncModel::kDrop ? spec.quorum : spec.staleness) = *value;
  return true;
}

std::string missing_count(SyncModel model) {
  const std::string name = kSyncModelNames[static_cast<size_t>(model)];
  if (model == SyncModel::kAdaptive) {
    return name + " needs the range of its staleness, as in adaptive:1-8";
  }
  if (model == SyncModel::kDrop) {
    return name + " needs its quorum, the number of ranks in a round, as in drop:2";
  }
  return name + " needs its staleness in iterations, as in ssp:3";
}

}  // namespace

Result<SyncSpec> parse_sync_text(std::string_view text) {
  std::string_view rest = text;
  const auto model = model_named(take_word(rest));
  if (!model) {
    return invalid_model(text,
                         "the model is unknown; write bsp, asp, ssp, essp, pssp, dpssp, drop or "
                         "adaptive, with its values after it, as in ssp:3");
  }
  SyncSpec spec{.model = *model};
  if (*model == SyncModel::kEssp) spec.reads = Reads::kCached;
  if (has_staleness(*model) || *model == SyncModel::kDrop) {
    if (!take_count(take_word(rest), spec)) return invalid_model(text, missing_count(*model));
  }
  if (has_probability(*model) && !rest.empty()) {
    std::string_view after = rest;
    if (const auto value = number_in<float>(take_word(after))) {
      spec.probability = *value;
      rest = after;
    }
  }
  while (!rest.empty()) {
    const std::string word(take_word(rest));
    if (take_choice(word, spec)) continue;
    if (*model == SyncModel::kDrop && take_of_drop(word, spec)) continue;
    return invalid_model(text, "'" + word +
                                   "' has no meaning there; the model's numbers may be followed "
                                   "by soft, lazy, fresh, cached, answered and gradient, and with "
                                   "drop also by a grace, such as 500ms or auto, and by next");
  }
  return spec;
}

std::string sync_text(const SyncSpec& spec) {
  std::string text = kSyncModelNames[static_cast<size_t>(spec.model)];
  if (has_staleness(spec.model)) text.append(":");
  if (spec.model == SyncModel::kAdaptive) {
    text.append(std::to_string(spec.staleness_min)).append("-");
  }
  if (has_staleness(spec.model)) text.append(std::to_string(spec.staleness));
  if (spec.model == SyncModel::kDrop) text.append(":").append(std::to_string(spec.quorum));
  if (has_probability(spec.model)) text.append(":").append(to_text(spec.probability));
  if (spec.release == Release::kLazy) text += ":lazy";
  if (spec.reads == Reads::kCached && spec.model != SyncModel::kEssp) text += ":cached";
  if (spec.reads == Reads::kAnswered) text += ":answered";
  if (spec.by_gradient) text += ":gradient";
  if (spec.grace_ms == kGraceAuto) {
    text += ":auto";
  } else if (spec.grace_ms != 0) {
    text.append(":").append(std::to_string(spec.grace_ms)).append("ms");
  }
  if (spec.counts_late) text += ":next";
  return text;
}

}  // namespace pbox::wire
