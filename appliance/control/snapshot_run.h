// A snapshot of a job as the box takes it that was asked for it: every box that has a part is asked
// for the same cut, again and again, until all parts are written. A chunk that is beyond the cut
// when its box hears of it cannot be in it: then a later cut is tried. Control thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "appliance/snapshot/store.h"
#include "base/result.h"
#include "nic/wire/control.pb.h"

namespace pbox::appliance {

struct SnapshotView {
  std::string job;
  // "starting", "cutting", "writing", "done", "failed"; stable
  const char* state = "";
  uint64_t number = 0;  // 0: it has none yet
  uint64_t steps = 0;   // that the weights have taken; done
  uint32_t attempts = 0;
  uint64_t chunks = 0, chunks_copied = 0;
  uint32_t parts = 0, parts_written = 0;
  uint64_t bytes = 0;  // written
  std::string error;   // failed: why
};

class SnapshotRun : public std::enable_shared_from_this<SnapshotRun> {
 public:
  using Answer = std::function<void(Result<proto::CutProgress>)>;
  // Asks a box by its name; empty: this one. The answer may come at once.
  using Ask = std::function<void(const std::string& box, const proto::AskCut&, Answer)>;
  // Asks which box has which part. The answer may come at once.
  using AskPartMap = std::function<void(std::function<void(const Result<proto::PartMap>&)>)>;
  // What of the time of day a manifest states.
  using Clock = std::function<std::string()>;

  // `shelf` outlives it. It fails unless it is done at `deadline_ns`. `on_end` is called once, when
  // it is over.
  SnapshotRun(snapshot::SnapshotStore& shelf, Ask ask, AskPartMap ask_part_map, Clock clock,
              std::function<void()> on_end, std::string job, uint64_t deadline_ns);

  // `own_name`: as the plan has this box. `ranks`: incarnations of the job's. Once.
  void begin(const std::string& own_name, std::vector<uint64_t> ranks);
  void on_tick(uint64_t now_ns);

  bool is_over() const { return state_ == State::kDone || state_ == State::kFailed; }
  bool is_done() const { return state_ == State::kDone; }
  SnapshotView view() const;

 private:
  // kPlacing: where are the parts? kProbing: how far are they? kCutting: they take the cut, and
  // write it.
  enum class State { kStarting, kPlacing, kProbing, kCutting, kFinishing, kDone, kFailed };
  struct Part {
    std::string asked_as;  // its box, to ask for; empty: this one
    std::string box;
    proto::CutProgress progress;
    bool is_asked = false;      // and has yet to answer
    bool has_answered = false;  // in this state
    std::string refusal;        // why it has not, as it or its box says
  };

  void on_number(const Result<uint64_t>& number);
  void ask_places();
  void on_places(const Result<proto::PartMap>& plan);
  void enter(State state);
  void ask_all();
  void ask(uint32_t part);
  void on_answer(uint32_t part, uint32_t attempt, State state,
                 const Result<proto::CutProgress>& answer);
  void on_probed();
  void on_progress();
  bool waits_in_vain(uint64_t now_ns);
  void try_again();
  void finish();
  void fail(const std::string& why);
  void end(State state);
  void let_go();

  snapshot::SnapshotStore& shelf_;
  Ask ask_;
  AskPartMap ask_plan_;
  Clock clock_;
  std::function<void()> on_end_;
  std::string job_;
  uint64_t deadline_ns_;
  std::string own_name_;
  std::vector<uint64_t> ranks_;
  State state_ = State::kStarting;
  std::vector<Part> parts_;
  uint64_t number_ = 0;
  uint32_t attempt_ = 0;
  uint32_t missed_ = 0;           // cuts, one after the other
  uint64_t cutting_from_ns_ = 0;  // 0: from the next tick on
  uint32_t round_ = 0;            // 0: nothing has been cut
  uint64_t steps_ = 0;
  std::string error_;
};

}  // namespace pbox::appliance
