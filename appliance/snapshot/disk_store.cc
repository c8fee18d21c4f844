#include "appliance/snapshot/disk_store.h"

#include <boost/asio/post.hpp>
#include <utility>

#include "appliance/snapshot/folder.h"
#include "base/check.h"

namespace pbox::snapshot {

DiskSnapshotStore::DiskSnapshotStore(boost::asio::io_context& context, std::string directory,
                                     std::function<void()> on_done)
    : context_(context), directory_(std::move(directory)), on_done_(std::move(on_done)) {
  PBOX_CHECK(!directory_.empty() && on_done_ != nullptr);
}

DiskSnapshotStore::~DiskSnapshotStore() {
  stopped_ = true;
  *alive_ = false;
  thread_.stop();
  thread_.join();
}

// Runs `work` on the disk thread, then `done` with its result on the context's thread.
template <typename Work, typename Done>
void DiskSnapshotStore::run(Work work, Done done) {
  boost::asio::post(
      thread_, [this, alive = alive_, work = std::move(work), done = std::move(done)]() mutable {
        auto answer = work();
        boost::asio::post(context_, [this, alive = std::move(alive), answer = std::move(answer),
                                     done = std::move(done)]() mutable {
          if (!*alive) return;
          done(std::move(answer));
          on_done_();
        });
      });
}

void DiskSnapshotStore::begin(const std::string& job, std::function<void(Result<uint64_t>)> done) {
  run([this, job] { return make_next(directory_, job); }, std::move(done));
}

void DiskSnapshotStore::write_part(uint64_t number, PartHead head, Cuts cuts,
                                   std::function<void(Result<PartFile>)> done) {
  PBOX_CHECK(number > 0);
  run(
      [this, number, head = std::move(head), cuts = std::move(cuts)]() mutable {
        const std::string name = part_name(head);
        auto file = snapshot::write_part(number_folder(directory_, head.job, number) + "/" + name,
                                         head, cuts, stopped_);
        cuts.clear();  // frees their memory, which is large, before `done` runs
        if (file) file->name = name;
        return file;
      },
      std::move(done));
}

void DiskSnapshotStore::finish(Manifest manifest, std::function<void(Status)> done) {
  PBOX_CHECK(manifest.number > 0);
  run([this, manifest = std::move(manifest)] { return snapshot::finish(directory_, manifest); },
      std::move(done));
}

void DiskSnapshotStore::discard(const std::string& job, uint64_t number) {
  boost::asio::post(thread_, [this, job, number] { snapshot::discard(directory_, job, number); });
}

void DiskSnapshotStore::load(PartHead part, Choice choice,
                             std::function<void(Result<Restored>)> done) {
  run([this, part = std::move(part),
       choice = std::move(choice)] { return snapshot::load(directory_, part, choice, stopped_); },
      std::move(done));
}

}  // namespace pbox::snapshot
