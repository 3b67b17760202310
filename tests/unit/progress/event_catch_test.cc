// SPDX-License-Identifier: Apache-2.0
// progress::EventCatch: events that the sleeping thread itself produces.
#include "progress/event_catch.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <memory>
#include <thread>

#include "progress/descriptors.h"

namespace nupa::progress {
namespace {

struct ProgressEventCatch : testing::Test {
  std::unique_ptr<EventDescriptor> events = EventDescriptor::open().value();
  std::unique_ptr<EventDescriptor> others = EventDescriptor::open().value();

  /// As any thread makes one.
  static void make(const EventDescriptor& of) {
    if (!EventCatch::keep(of.signal_fd())) of.count();
  }
};

TEST_F(ProgressEventCatch, OwnEvents_AreNotWritten) {
  EventCatch caught(*events);
  EXPECT_FALSE(caught.is_there());
  EXPECT_FALSE(caught.take());
  make(*events);
  EXPECT_TRUE(caught.is_there());
  EXPECT_FALSE(is_readable(events->signal_fd()));
  EXPECT_TRUE(caught.take());
  EXPECT_FALSE(caught.take());
  EXPECT_FALSE(caught.is_there());
}

TEST_F(ProgressEventCatch, EventsThatWereNotTaken_AreWrittenAtTheEnd) {
  {
    EventCatch caught(*events);
    for (int i = 0; i < 3; ++i) make(*events);
    EXPECT_TRUE(caught.take());
  }
  EXPECT_TRUE(events->take_back());
  EXPECT_TRUE(events->take_back());
  EXPECT_FALSE(events->take_back());
  make(*events);
  EXPECT_TRUE(events->take_back()) << "nobody catches any more";
}

TEST_F(ProgressEventCatch, OtherDescriptorsEvents_AreWritten) {
  EventCatch caught(*events);
  make(*others);
  EXPECT_FALSE(caught.is_there());
  EXPECT_TRUE(others->take_back());
}

TEST_F(ProgressEventCatch, OtherThreadsEvents_AreWritten) {
  EventCatch caught(*events);
  std::thread([this] { make(*events); }).join();
  EXPECT_TRUE(caught.is_there());
  EXPECT_FALSE(caught.take());
  EXPECT_TRUE(events->take_back());
}

TEST_F(ProgressEventCatch, EventsDuringASleep_AreWritten) {
  EventCatch caught(*events);
  EXPECT_TRUE(caught.begin_sleep());
  make(*events);
  EXPECT_TRUE(events->take_back());
  caught.end_sleep();
  make(*events);
  EXPECT_FALSE(events->take_back());
  EXPECT_FALSE(caught.begin_sleep()) << "one is here";
}

TEST_F(ProgressEventCatch, Take_ExpectedEvent_TestsBeforeItSleeps) {
  events->count();
  EXPECT_EQ(events->take(events->fd(), true, [] { return EINTR; }), 0);
  EXPECT_EQ(events->take(events->fd(), true, [] { return EINTR; }), EINTR);
  EXPECT_EQ(events->take(events->fd(), true, [] { return EventDescriptor::kTaken; }), 0);
  events->count();
  EXPECT_EQ(events->take(events->fd(), false, [] { return EINTR; }), EINTR) << "it sleeps first";
  EXPECT_EQ(events->take(events->fd(), false, [] { return EventDescriptor::kReadable; }), 0);
  EXPECT_FALSE(is_readable(events->fd()));
}

TEST_F(ProgressEventCatch, Take_NonblockingDescriptor_TakesTheUnexpectedEvent) {
  fcntl(events->fd(), F_SETFL, O_NONBLOCK);
  events->count();
  EXPECT_EQ(events->take(events->fd(), false, [] { return 0; }), 0);
  EXPECT_EQ(events->take(events->fd(), false, [] { return 0; }), EAGAIN);
}

}  // namespace
}  // namespace nupa::progress
