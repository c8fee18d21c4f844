#include "worker/choice/chosen_tensors.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/limits.h"

namespace pbox::worker {
namespace {

// Suffixes of the names of a tensor's compressed form and of its votes.
constexpr std::string_view kCompressedSuffix = "#packed", kVotesSuffix = "#votes";

}  // namespace

Status ChosenTensors::check(const TensorSpec& tensor) {
  constexpr size_t kNameBytesMax = limits::kTensorNameBytesMax - kCompressedSuffix.size();
  if (tensor.name.size() > kNameBytesMax) {
    return Error{ErrorCode::kInvalidArgument,
                 "the name of a tensor with compression auto must have at most " +
                     std::to_string(kNameBytesMax) + " bytes, and '" + tensor.name + "' has " +
                     std::to_string(tensor.name.size())};
  }
  if (tensor.row_elements > 0) {
    return Error{ErrorCode::kInvalidArgument,
                 "tensor '" + tensor.name + "' is a table, which is not compressed"};
  }
  return ok_status();
}

bool ChosenTensors::any(const std::vector<TensorSpec>& tensors) {
  return std::any_of(tensors.begin(), tensors.end(),
                     [](const TensorSpec& tensor) { return tensor.chooses; });
}

ChosenTensors::ChosenTensors(const std::vector<TensorSpec>& tensors) : tensors_(tensors) {
  for (uint32_t tensor = 0; tensor < tensors.size(); ++tensor) {
    callers_.push_back(tensor);
    chosen_of_.push_back(-1);
  }
  for (uint32_t tensor = 0; tensor < tensors.size(); ++tensor) {
    if (!tensors[tensor].chooses) continue;
    chosen_of_[tensor] = static_cast<int32_t>(chosen_.size());
    Chosen& chosen = chosen_.emplace_back();
    chosen.tensor = tensor;
    TensorSpec compressed = tensors[tensor];
    compressed.name += kCompressedSuffix;
    compressed.is_form = true;
    chosen.compressed = static_cast<uint32_t>(tensors_.size());
    tensors_.push_back(compressed);
    TensorSpec votes = tensors[tensor];
    votes.name += kVotesSuffix;
    votes.is_votes = true;
    votes.elements = sizeof(CompressionChoice::Vote) / sizeof(float);
    votes.compression = wire::Compression::kNone;
    chosen.votes = static_cast<uint32_t>(tensors_.size());
    tensors_.push_back(votes);
    tensors_[tensor].compression = wire::Compression::kNone;
    callers_.insert(callers_.end(), 2, tensor);
    chosen_of_.insert(chosen_of_.end(), 2, chosen_of_[tensor]);
  }
}

void ChosenTensors::begin(const std::function<uint32_t(uint32_t)>& round) {
  for (Chosen& chosen : chosen_) {
    chosen.choice.emplace(round(chosen.tensor), round(chosen.compressed), round(chosen.votes));
  }
}

void ChosenTensors::start(const Operation& operation, uint64_t now_ns) {
  PBOX_CHECK(operation.tensor < chosen_of_.size());
  if (chosen_of_[operation.tensor] < 0) {
    operations_.push_back(operation);
    return;
  }
  Chosen& chosen = chosen_[static_cast<size_t>(chosen_of_[operation.tensor])];
  PBOX_CHECK(chosen.tensor == operation.tensor && !chosen.held && !chosen.under_way);
  chosen.held = operation;
  chosen.started_ns = now_ns;
  advance(chosen);
}

// Starts what the held operation still lacks: a vote, or a fetch of the newest sum. If it lacks
// nothing, starts the operation itself.
void ChosenTensors::advance(Chosen& chosen) {
  CompressionChoice& choice = *chosen.choice;
  const auto lack = choice.lacks();
  if (lack != CompressionChoice::Lack::kNothing) {
    return send_vote(chosen, lack == CompressionChoice::Lack::kSum);
  }
  Operation operation = *std::exchange(chosen.held, std::nullopt);
  chosen.under_way = choice.form();
  if (*chosen.under_way == Form::kCompressed) operation.tensor = chosen.compressed;
  if (choice.votes_next()) send_vote(chosen, false);
  operations_.push_back(operation);
}

// Does nothing if the vote has been sent already.
void ChosenTensors::send_vote(Chosen& chosen, bool fetches) {
  if (chosen.is_voting) return;
  chosen.vote = chosen.choice->vote();
  chosen.is_voting = true;
  chosen.is_fetching = fetches;
  Operation operation;
  operation.tensor = chosen.votes;
  operation.input = reinterpret_cast<const std::byte*>(&chosen.vote);
  operation.output = reinterpret_cast<std::byte*>(&chosen.sum);
  operation.fetch = fetches;
  operations_.push_back(operation);
}

std::vector<uint32_t> ChosenTensors::complete(std::span<const uint32_t> tensors, uint64_t now_ns) {
  std::vector<uint32_t> completed;
  for (const uint32_t tensor : tensors) {
    PBOX_CHECK(tensor < chosen_of_.size());
    if (chosen_of_[tensor] < 0) {
      completed.push_back(tensor);
      continue;
    }
    Chosen& chosen = chosen_[static_cast<size_t>(chosen_of_[tensor])];
    if (tensor == chosen.votes) {
      PBOX_CHECK(std::exchange(chosen.is_voting, false));
      chosen.choice->on_sum(chosen.sum, chosen.is_fetching);
      if (chosen.held) advance(chosen);
      continue;
    }
    const Form form = *std::exchange(chosen.under_way, std::nullopt);
    PBOX_CHECK(tensor == (form == Form::kCompressed ? chosen.compressed : chosen.tensor));
    chosen.choice->on_round(form, static_cast<double>(now_ns - chosen.started_ns) /
                                      static_cast<double>(kNanosPerSecond));
    completed.push_back(chosen.tensor);
  }
  return completed;
}

std::vector<Operation> ChosenTensors::take_operations() {
  return std::exchange(operations_, {});
}

uint32_t ChosenTensors::awaited(uint32_t tensor) const {
  PBOX_CHECK(tensor < chosen_of_.size());
  if (chosen_of_[tensor] < 0) return tensor;
  const Chosen& chosen = chosen_[static_cast<size_t>(chosen_of_[tensor])];
  if (chosen.held) return chosen.votes;
  const Form form = chosen.under_way.value_or(chosen.choice->newest());
  return form == Form::kCompressed ? chosen.compressed : chosen.tensor;
}

const CompressionChoice* ChosenTensors::choice(uint32_t tensor) const {
  PBOX_CHECK(tensor < chosen_of_.size());
  if (chosen_of_[tensor] < 0) return nullptr;
  return &*chosen_[static_cast<size_t>(chosen_of_[tensor])].choice;
}

std::vector<int32_t> ChosenTensors::priorities(const std::vector<int32_t>& by_tensor) const {
  std::vector<int32_t> all;
  if (by_tensor.empty()) return all;
  for (const uint32_t caller : callers_) all.push_back(by_tensor[caller]);
  return all;
}

}  // namespace pbox::worker
