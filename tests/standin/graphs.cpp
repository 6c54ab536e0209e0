// SPDX-License-Identifier: Apache-2.0
#include "standin/graphs.h"

#include <algorithm>
#include <exception>
#include <utility>

namespace penstock::standin {
namespace {

bool operator==(const Place& a, const Place& b) {
  return a.chain == b.chain && a.step == b.step;
}

// The order of steps: how many steps of each chain are certain to be done when a step begins.
class Order {
 public:
  Order(const Graph& graph, const std::optional<Place>& left_out);
  // Returns how many steps of `other` are done when this step begins, or, behind the last one, at its chain's end.
  std::size_t done(const Place& at, std::size_t other) const { return known_[at.chain][at.step * chains_ + other]; }
  bool comes_before(const Place& a, const Place& b) const { return done(b, a.chain) > a.step; }

 private:
  std::size_t chains_;
  std::vector<std::vector<std::size_t>> known_;
};

// Linear in steps times chains.
Order::Order(const Graph& graph, const std::optional<Place>& left_out) : chains_(graph.chains.size()), known_(chains_) {
  std::vector<Place> reached_at(graph.points);
  for (std::size_t c = 0; c < chains_; ++c) {
    known_[c].reserve((graph.chains[c].size() + 1) * chains_);
    known_[c].resize(chains_);
    for (std::size_t i = 0; i < graph.chains[c].size(); ++i)
      if (graph.chains[c][i].kind == Step::Kind::reach) reached_at[graph.chains[c][i].point] = {c, i};
  }
  for (bool goes_on = true; goes_on;) {
    goes_on = false;
    for (std::size_t c = 0; c < chains_; ++c)
      for (std::size_t i; (i = known_[c].size() / chains_ - 1) < graph.chains[c].size(); goes_on = true) {
        const Step& step = graph.chains[c][i];
        const std::size_t* waited_for = nullptr;
        if (step.kind == Step::Kind::wait && !(left_out && *left_out == Place{c, i})) {
          const auto [other, place] = reached_at[step.point];
          if (known_[other].size() / chains_ <= place + 1) break;  // not looked at yet
          waited_for = &known_[other][(place + 1) * chains_];
        }
        for (std::size_t k = 0; k < chains_; ++k) {
          const std::size_t own = k == c ? i + 1 : known_[c][i * chains_ + k];
          known_[c].push_back(waited_for ? std::max(own, waited_for[k]) : own);
        }
      }
  }
}

}  // namespace

bool is_joined(const Graph& graph) {
  const Order order(graph, {});
  for (std::size_t c = 0; c < graph.chains.size(); ++c) {
    const Chain& chain = graph.chains[c];
    const auto is_work = [](const Step& step) { return step.kind == Step::Kind::work; };
    const auto done = static_cast<std::ptrdiff_t>(order.done({0, graph.chains[0].size()}, c));
    if (std::any_of(chain.begin() + done, chain.end(), is_work)) return false;
  }
  return true;
}

std::vector<Collision> collisions(const Graph& graph) {
  struct Touch {
    Access access;
    Place place;
  };
  std::vector<Touch> touches;
  for (std::size_t c = 0; c < graph.chains.size(); ++c)
    for (std::size_t i = 0; i < graph.chains[c].size(); ++i)
      for (const Access& access : graph.chains[c][i].touched.bytes) touches.push_back({access, {c, i}});
  std::ranges::sort(touches, {}, [](const Touch& touch) { return touch.access.begin; });
  std::vector<Collision> out;
  for (auto a = touches.begin(); a != touches.end(); ++a)
    for (auto b = a + 1; b != touches.end() && b->access.begin < a->access.begin + a->access.bytes; ++b)
      if (a->place.chain != b->place.chain && (a->access.writes || b->access.writes)) out.push_back({a->place, b->place});
  return out;
}

std::vector<Collision> races(const Graph& graph, const std::vector<Collision>& collisions, const std::optional<Place>& left_out) {
  const Order order(graph, left_out);
  std::vector<Collision> out;
  for (const auto& [first, second] : collisions)
    if (!order.comes_before(first, second) && !order.comes_before(second, first)) out.push_back({first, second});
  return out;
}

std::string name_of(const Graph& graph, const Place& work) {
  return graph.chains[work.chain][work.step].touched.by + " (chain " + std::to_string(work.chain) + ", step " + std::to_string(work.step) +
         ")";
}

std::vector<NeededWait> needed_waits(const Graph& graph) {
  const std::vector<Collision> all = collisions(graph);
  const Order order(graph, {});
  std::vector<NeededWait> out;
  for (std::size_t c = 1; c < graph.chains.size(); ++c)
    for (std::size_t i = 0; i < graph.chains[c].size(); ++i) {
      if (graph.chains[c][i].kind != Step::Kind::wait) continue;
      std::vector<Collision> without = races(graph, all, Place{c, i});
      for (Collision& collision : without)
        if (order.comes_before(collision.second, collision.first)) std::swap(collision.first, collision.second);
      if (!without.empty()) out.push_back({{c, i}, std::move(without)});
    }
  return out;
}

void launch(Graph& graph, int stream, const std::optional<LeftOut>& left_out) {
  while (graph.streams.size() < graph.chains.size()) graph.streams.push_back(new_stream());
  const auto points = std::make_shared<std::vector<Point>>(graph.points + 1);  // the last: of a left out wait, its second work is done
  const auto reach = [points](std::size_t number) { return [points, number] { (*points)[number].reach(); }; };
  const auto wait = [points](std::size_t number) { return [points, number] { (*points)[number].wait(); }; };
  const std::shared_ptr<Point> begin = record(stream);
  std::vector<std::shared_ptr<Point>> ends;
  for (std::size_t c = 0; c < graph.chains.size(); ++c) {
    const int own = graph.streams[c];
    block(own, begin);
    for (std::size_t i = 0; i < graph.chains[c].size(); ++i) {
      const Step& step = graph.chains[c][i];
      if (left_out && left_out->collision.first == Place{c, i}) enqueue(own, wait(graph.points));
      if (step.kind == Step::Kind::reach)
        enqueue(own, reach(step.point));
      else if (step.kind == Step::Kind::work)
        enqueue(own, [&step, stream] {
          try {
            step.work();
          } catch (...) {
            fail(stream, std::current_exception());
          }
        });
      else if (!left_out || !(left_out->wait == Place{c, i}))
        enqueue(own, wait(step.point));
      if (left_out && left_out->collision.second == Place{c, i}) enqueue(own, reach(graph.points));
    }
    ends.push_back(record(own));
  }
  for (const std::shared_ptr<Point>& end : ends) block(stream, end);
}

// The work of a launch that is under way refers to it.
void destroy(std::unique_ptr<Graph> graph) {
  for (const int stream : graph->streams) synchronise(stream);
}

}  // namespace penstock::standin
