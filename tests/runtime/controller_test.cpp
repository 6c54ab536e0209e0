// Which of several devices' errors a step reports.
#include "runtime/controller.h"

#include <gtest/gtest.h>

#include "support/errors.h"

namespace penstock {
namespace {

Reply says(std::string error, std::vector<std::int32_t> lost = {}, bool aborted = false) {
  Reply reply;
  reply.error = std::move(error);
  reply.lost = std::move(lost);
  reply.aborted = aborted;
  return reply;
}

// Answers every command with the same replies.
class Canned : public Carrier {
 public:
  explicit Canned(std::vector<Reply> replies) : replies_(std::move(replies)) {}
  int devices() const override { return static_cast<int>(replies_.size()); }
  std::vector<Reply> exchange(const Command&) override { return replies_; }

 private:
  std::vector<Reply> replies_;
};

std::string reported(std::vector<Reply> replies) {
  return test::message_of([&] { make_cluster(std::make_unique<Canned>(std::move(replies)))->set_state({}); });
}

const Reply kSilent = says("device 2 was lost: it did not answer", {2}, true);

TEST(Controller, ReportsTheErrorNearestToTheCause) {
  EXPECT_EQ(reported({{}, says("b")}), "b");
  EXPECT_EQ(reported({says("a", {}, true), says("b")}), "b");
  EXPECT_EQ(reported({says("a", {1}), says("b", {2}), kSilent}), "b");
  EXPECT_EQ(reported({says("a", {1}), says("b")}), "b");
  EXPECT_EQ(reported({says("a", {1}), says("b", {0})}), "a");
  EXPECT_EQ(reported({says("a", {1}), says("b", {1})}), "b");
  EXPECT_EQ(reported({{}, {}, kSilent}), "device 2 was lost: it did not answer");
}

// Members of a group blame each other; the one that is gone says nothing, the one that failed says why.
TEST(Controller, OfAGroupReportsWhoFailedOrDidNotAnswer) {
  EXPECT_EQ(reported({says("a", {1, 2}), says("b", {0, 2}), kSilent}), "a\n  device 2 was lost: it did not answer");
  EXPECT_EQ(reported({says("a", {1, 2}), says("b", {0, 2}), says("c")}), "c");
  EXPECT_EQ(reported({says("a", {1, 2}), says("b", {0, 2}), says("c", {3}), {}}), "c");
  EXPECT_EQ(reported({says("a", {1, 2}), says("b", {0, 2}), says("c", {0, 1})}), "a");
}

}  // namespace
}  // namespace penstock
