// SPDX-License-Identifier: Apache-2.0
// State that devices hold in pieces: set, asked for, written and read by programs that cut it elsewhere.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "base/text.h"
#include "driver/thread_cluster.h"
#include "formats/safetensors.h"
#include "program/piece.h"
#include "state/checkpoint.h"
#include "state/initialise.h"
#include "state/manifest.h"
#include "state/state_source.h"
#include "support/errors.h"
#include "support/fake_device.h"
#include "support/random_pieces.h"
#include "support/random_program.h"
#include "support/rounds.h"
#include "support/temporary.h"

namespace penstock {
namespace {

using test::message_of;
using test::TemporaryFolder;
using Bytes = std::vector<std::byte>;

// A program whose devices have these slots: "state (f32[4] \"w[0:4]\")".
Program program_of(const std::vector<std::string>& devices) {
  std::string text = "penstock program 1\nprogram @p {microbatches=1}\n";
  for (std::size_t d = 0; d < devices.size(); ++d)
    text += concat("device ", d, " {state_bytes=128, step_bytes=0, scratch_bytes=0}\n", devices[d]);
  return parse_program(text);
}
Program whole() {
  return program_of({"slot %w state @0 (f32[2,5] \"w\", f32[2,5] \"first:w\")\n"});
}
Program on_two() {
  return program_of({"slot %w state @0 (f32[7] \"w[3:10]\", f32[6] \"first:w[0:6]\")\n",
                     "slot %w state @0 (f32[3] \"w[0:3]\", f32[4] \"first:w[6:10]\")\n"});
}
// The first two have copies of all of "w" beside their pieces.
Program on_three() {
  return program_of({"slot %w state @0 (f32[2] \"w[0:2]\")\nslot %c copy @64 (f32[2,5] \"w\")\n",
                     "slot %w state @0 (f32[3] \"w[2:5]\")\nslot %c copy @64 (f32[2,5] \"w\")\n",
                     "slot %w state @0 (f32[5] \"w[5:10]\", f32[10] \"first:w[0:10]\")\n"});
}

// Columns: two, and three, of which "w" has the elements on two devices.
Program in_columns() {
  return program_of({"slot %w state @0 (f32[2,2] \"w[0:2/5]\", f32[2,2] \"first:w[0:2/5]\")\n",
                     "slot %w state @0 (f32[4] \"w[2:5/5][0:4]\", f32[2,3] \"first:w[2:5/5]\")\n",
                     "slot %w state @0 (f32[2] \"w[2:5/5][4:6]\")\nslot %c copy @64 (f32[2,3] \"w[2:5/5]\")\n"});
}

std::unique_ptr<Cluster> cluster_with(const Program& program) {
  auto cluster = make_thread_cluster(3, [](int) { return make_fake_executor({}); }, std::make_shared<test::HashData>());
  cluster->load(program);
  return cluster;
}

const ParameterSpec kSpec = {"w", {DType::f32, {2, 5}}, {Initialiser::Kind::normal, 1.0}, true};

// Without the highest bit of an exponent: as numbers of any floating dtype they are finite.
Bytes random_bytes(std::size_t count, std::mt19937_64& random) {
  Bytes out(count);
  for (std::byte& b : out) b = static_cast<std::byte>(random() & 0xbf);
  return out;
}

StateSource checkpoint_source(const std::string& folder) {
  StateSource source;
  source.kind = StateSource::Kind::checkpoint;
  source.path = folder;
  return source;
}

// A checkpoint of one file.
std::string write_tensors(const TemporaryFolder& out, const std::vector<std::pair<std::string, StoredTensor>>& tensors) {
  return write_checkpoint(out.path().string(), {}, 1, [&](const std::string& folder) {
    write_safetensors(folder + "/device-0.safetensors", tensors);
    return std::vector<std::string>{"device-0.safetensors"};
  });
}

TEST(Pieces, AreDrawnAsTheWhole) {
  StateSource source;
  source.seed = 5;
  source.parameters = {kSpec};
  Bytes expected(40);
  initialise(kSpec, 5, expected);
  for (const Program& program : {whole(), on_two(), on_three(), in_columns()}) {
    const auto cluster = cluster_with(program);
    cluster->set_state(source);
    EXPECT_EQ(cluster->state("w"), expected);
    EXPECT_EQ(cluster->state("first:w"), Bytes(40));
    EXPECT_EQ(message_of([&] { cluster->state("u"); }), "no device has a state named \"u\"");
  }
}

// The second program owns what was a copy in the first, so that it can be asked for.
TEST(Pieces, LieBesideAWholeCopy) {
  StateSource source;
  source.parameters = {kSpec};
  const auto cluster = cluster_with(on_three());
  cluster->set_state(source);
  const Bytes assembled = cluster->state("w");
  cluster->load(program_of({"", "slot %w state @0 (f32[2,5] \"w\")\n"}));
  EXPECT_EQ(cluster->state("w"), assembled);
  EXPECT_EQ(cluster->state("w[2:5]"), Bytes(assembled.begin() + 8, assembled.begin() + 20));
}

TEST(Pieces, OfAFileOfParameters) {
  const TemporaryFolder folder;
  std::vector<double> values(10);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i) + 0.1;
  write_safetensors(folder.file("f64"), {{"transformer.w", {{DType::f64, {2, 5}}, std::as_bytes(std::span(values))}}});
  const auto cluster = cluster_with(on_two()), columns = cluster_with(in_columns());
  cluster->set_state({StateSource::Kind::safetensors, 0, {kSpec}, folder.file("f64")});
  const Bytes w = cluster->state("w");
  for (std::size_t i = 0; i < 10; ++i) EXPECT_EQ(load_element(DType::f32, w, i), static_cast<double>(static_cast<float>(values[i])));
  columns->set_state({StateSource::Kind::safetensors, 0, {kSpec}, folder.file("f64")});
  EXPECT_EQ(columns->state("w"), w);

  write_safetensors(folder.file("flat"), {{"w", {{DType::f64, {10}}, std::as_bytes(std::span(values))}}});
  EXPECT_EQ(message_of([&] { cluster->set_state({StateSource::Kind::safetensors, 0, {kSpec}, folder.file("flat")}); }),
            concat(folder.file("flat"), ": \"w\" is f64[10], the program needs f32[2,5]"));
}

TEST(Pieces, MoveThroughCheckpointsBetweenAllForms) {
  std::mt19937_64 random(1);
  const Bytes w = random_bytes(40, random), first = random_bytes(40, random);
  const TemporaryFolder start;
  std::string folder = write_tensors(start, {{"w", {{DType::f32, {2, 5}}, w}}, {"first:w", {{DType::f32, {2, 5}}, first}}});
  std::vector<std::unique_ptr<TemporaryFolder>> runs;
  for (const Program& program : {on_two(), on_three(), in_columns(), on_two(), whole(), in_columns(), in_columns(), on_three(), whole()}) {
    const auto cluster = cluster_with(program);
    cluster->set_state(checkpoint_source(folder));
    EXPECT_EQ(cluster->state("w"), w);
    EXPECT_EQ(cluster->state("first:w"), first);
    runs.push_back(std::make_unique<TemporaryFolder>());
    folder = write_checkpoint(runs.back()->path().string(), {}, 1, [&](const std::string& path) { return cluster->save_state(path); });
  }
  EXPECT_EQ(checkpoint_index(folder).size(), 2u);
}

TEST(Pieces, OfValuesFromTheController) {
  std::mt19937_64 random(2);
  StateSource source;
  source.kind = StateSource::Kind::values;
  source.values["w"] = random_bytes(40, random);
  for (const Program& program : {whole(), on_two(), on_three(), in_columns()}) {
    const auto cluster = cluster_with(program);
    cluster->set_state(source);
    EXPECT_EQ(cluster->state("w"), source.values["w"]);
    EXPECT_EQ(cluster->state("first:w"), Bytes(40));
  }
  source.values["w"].resize(36);
  const auto failure = [&](const Program& program) { return message_of([&] { cluster_with(program)->set_state(source); }); };
  EXPECT_EQ(failure(whole()), "the value of \"w\" has 36 bytes, the program needs f32[2,5]");
  EXPECT_EQ(failure(in_columns()), "the value of \"w\" has 36 bytes, the program needs its elements [0:2/5] as f32[2,2]");
}

TEST(Pieces, TheManifestNamesThem) {
  const TemporaryFolder out;
  const auto cluster = cluster_with(on_two());
  const std::string folder =
      write_checkpoint(out.path().string(), {}, 1, [&](const std::string& path) { return cluster->save_state(path); });
  const std::string first = "device-0.safetensors", second = "device-1.safetensors";
  EXPECT_EQ(
      read_checkpoint(folder).files,
      (std::map<std::string, std::string>{{"w[3:10]", first}, {"first:w[0:6]", first}, {"w[0:3]", second}, {"first:w[6:10]", second}}));
}

// The programs before are unloaded ahead of the move, or behind it, or not at all.
TEST(Pieces, MoveBetweenAllFormsOfOneCluster) {
  std::mt19937_64 random(4);
  const std::vector<Program> programs = {on_two(), on_three(), in_columns(), on_two(), whole(), in_columns(), on_three(), whole()};
  for (int unloads = 0; unloads < 3; ++unloads) {
    StateSource source;
    source.kind = StateSource::Kind::values;
    for (const char* name : {"w", "first:w"}) source.values[name] = random_bytes(40, random);
    const auto cluster = cluster_with(in_columns());
    std::uint64_t last = cluster->load(in_columns());
    cluster->set_state(source);
    for (const Program& program : programs) {
      const std::uint64_t next = cluster->load(program);
      if (unloads == 1) cluster->unload(last);
      cluster->step(next, {});
      if (unloads == 2) cluster->unload(last);
      last = next;
      for (const char* name : {"w", "first:w"}) EXPECT_EQ(cluster->state(name), source.values[name]) << name;
    }
    source.values["w"] = random_bytes(40, random);
    cluster->set_state(source);
    cluster->unload(last);
    cluster->load(on_three());
    EXPECT_EQ(cluster->state("w"), source.values["w"]);  // no step of it, and no other program, unless none was unloaded
  }
}

TEST(Pieces, OfAnotherTypeAreRefused) {
  const auto cluster = cluster_with(program_of({"slot %a state @0 (f32[10] \"a[0:10]\")\n", "slot %a state @0 (f32[10] \"a[10:20]\")\n"}));
  const auto failure = [&](const Program& program) { return message_of([&] { cluster->step(cluster->load(program), {}); }); };
  EXPECT_EQ(failure(program_of({"slot %a state @0 (f64[10] \"a[0:10]\")\n", "slot %a state @0 (f64[10] \"a[10:20]\")\n"})),
            "device 0: state \"a[0:10]\" is held as f32[10], the program wants f64[10]\n  hint: both programs must be of one model");
  EXPECT_EQ(failure(program_of({"slot %a state @0 (f32[30] \"a[0:30]\")\n"})),
            "no device holds the elements [20:30] of state \"a\"\n  device 0 is to have them, in a[0:30]\n"
            "  hint: begin again from a checkpoint");
}

TEST(Pieces, WhatIsWrongIsNamed) {
  const TemporaryFolder out;
  const Bytes zeros(80);
  const auto four = [&](DType dtype) { return StoredTensor{{dtype, {4}}, std::span(zeros).first(dtype == DType::f64 ? 32 : 16)}; };
  const std::string folder = write_tensors(
      out, {{"a[0:4]", four(DType::f32)}, {"a[4:8]", four(DType::f64)}, {"b", four(DType::f32)}, {"c[0:5]", four(DType::f32)}});
  const std::string file = folder + "/device-0.safetensors";
  const StateSource source = checkpoint_source(folder);
  StateReader reader(source);
  const auto failure = [&](const std::string& name, const TensorType& type) {
    Bytes bytes(static_cast<std::size_t>(type.bytes()));
    return message_of([&] { reader.read(name, type, bytes); });
  };
  EXPECT_EQ(failure("a", {DType::f32, {2, 4}}), file + ": \"a[4:8]\" is f64[4], the program needs f32[4]");
  EXPECT_EQ(failure("a[0:4]", {DType::f32, {4}}), "no error");
  EXPECT_EQ(failure("a[4:8]", {DType::f32, {4}}), file + ": \"a[4:8]\" is f64[4], the program needs its elements [4:8] of f32");
  EXPECT_EQ(failure("a", {DType::f32, {9}}), folder + ": the pieces of \"a\" have 8 elements, the program needs f32[9]");
  EXPECT_EQ(failure("a", {DType::f32, {7}}), folder + ": the pieces of \"a\" have 8 elements, the program needs f32[7]");
  EXPECT_EQ(failure("a[7:9]", {DType::f32, {2}}),
            folder + ": the pieces of \"a\" have 8 elements, the program needs its elements [7:9] of f32");
  EXPECT_EQ(failure("b[2:5]", {DType::f32, {3}}), file + ": \"b\" is f32[4], the program needs its elements [2:5] of f32");
  EXPECT_EQ(failure("b[2:4]", {DType::i32, {2}}), file + ": \"b\" is f32[4], the program needs its elements [2:4] of i32");
  EXPECT_EQ(failure("c", {DType::f32, {5}}), file + ": \"c[0:5]\" is f32[4], the program needs f32[5]");
  EXPECT_EQ(failure("d[0:2]", {DType::f32, {2}}), folder + ": the checkpoint has no tensor \"d[0:2]\"\n  hint: it has a[0:4]");
}

TEST(Pieces, WhatIsWrongWithStridesIsNamed) {
  const TemporaryFolder out;
  const Bytes zeros(80);
  const auto of = [&](DType dtype, const Shape& shape) {
    const TensorType type{dtype, shape};
    return StoredTensor{type, std::span(zeros).first(static_cast<std::size_t>(type.bytes()))};
  };
  const std::string folder = write_tensors(out, {{"a[0:2/4]", of(DType::f32, {3, 2})},
                                                 {"a[2:4/4]", of(DType::f64, {3, 2})},
                                                 {"b", of(DType::f32, {2, 4})},
                                                 {"c[0:2/4]", of(DType::f32, {3, 2})},
                                                 {"c[2:4/4]", of(DType::f32, {2, 2})}});
  const std::string file = folder + "/device-0.safetensors";
  const StateSource source = checkpoint_source(folder);
  StateReader reader(source);
  const auto failure = [&](const std::string& name, const TensorType& type) {
    Bytes bytes(static_cast<std::size_t>(type.bytes()));
    return message_of([&] { reader.read(name, type, bytes); });
  };
  EXPECT_EQ(failure("a", {DType::f32, {3, 4}}), file + ": \"a[2:4/4]\" is f64[3,2], the program needs 6 elements of f32");
  EXPECT_EQ(failure("a[0:2/4]", {DType::f32, {3, 2}}), "no error");
  EXPECT_EQ(failure("a[0:1/4]", {DType::f32, {3, 1}}), "no error");
  EXPECT_EQ(failure("a[0:2/4]", {DType::f32, {6}}), file + ": \"a[0:2/4]\" is f32[3,2], the program needs its elements [0:2/4] as f32[6]");
  EXPECT_EQ(failure("a[0:1/5]", {DType::f32, {3, 1}}),
            folder + ": the pieces of \"a\" have 12 elements, the program needs its elements [0:1/5] as f32[3,1]");
  EXPECT_EQ(failure("a", {DType::f32, {4, 4}}), folder + ": the pieces of \"a\" have 12 elements, the program needs f32[4,4]");
  EXPECT_EQ(failure("b[0:1/4]", {DType::f32, {3, 1}}), file + ": \"b\" is f32[2,4], the program needs its elements [0:1/4] as f32[3,1]");
  EXPECT_EQ(failure("b[0:2/4][1:5]", {DType::f32, {4}}),
            file + ": \"b\" is f32[2,4], the program needs its elements [0:2/4][1:5] as f32[4]");
  EXPECT_EQ(failure("c", {DType::f32, {3, 4}}), file + ": \"c[2:4/4]\" is f32[2,2], the program needs 6 elements of f32");
}

TEST(Pieces, OfAParameterFitIt) {
  StateSource source;
  source.parameters = {kSpec};
  const auto failure = [&](const std::string& device) {
    const auto cluster = cluster_with(program_of({device}));
    return message_of([&] { cluster->set_state(source); });
  };
  EXPECT_EQ(failure("slot %w state @0 (f32[11] \"w[0:11]\")\n"),
            "parameter \"w\" is f32[2,5], the program needs its elements [0:11] of f32");
  EXPECT_EQ(failure("slot %w state @0 (f32[3,2] \"w[0:2/2]\")\n"),
            "parameter \"w\" is f32[2,5], the program needs its elements [0:2/2] as f32[3,2]");
  EXPECT_EQ(failure("slot %w state @0 (f64[2] \"w[0:2]\")\n"), "parameter \"w\" is f32[2,5], the program needs its elements [0:2] of f64");
}

TEST(Pieces, AGapInACheckpointIsDamage) {
  const Bytes zeros(16);
  const StoredTensor four{{DType::f32, {4}}, zeros};
  const auto failure_of = [&](const std::vector<std::string>& names) {
    const TemporaryFolder out;
    std::vector<std::pair<std::string, StoredTensor>> tensors;
    for (const std::string& name : names) tensors.emplace_back(name, four);
    const std::string folder = write_tensors(out, tensors), manifest = folder + "/manifest.json";
    const std::string message = message_of([&] { read_checkpoint(folder); });
    return message.starts_with(manifest) ? message.substr(manifest.size()) : message;
  };
  const std::string hint =
      "\n  hint: the checkpoint is damaged or from another program; --resume of the run's folder takes the newest intact one";
  EXPECT_EQ(failure_of({"w[0:4]", "w[4:8]", "w[8:12]"}), "no error");
  EXPECT_EQ(failure_of({"w[0:4]", "w[5:8]", "w[8:12]"}), ": the pieces of \"w\" leave a gap: nobody wrote its elements [4:5]" + hint);
  EXPECT_EQ(failure_of({"u[0:4]", "w[4:8]", "w[8:12]"}), ": the pieces of \"w\" leave a gap: nobody wrote its elements [0:4]" + hint);
  EXPECT_EQ(failure_of({"w[0:4]", "w[8:4]", "w[8:12]"}),
            ": state \"w[8:4]\" names no piece of a tensor\n  hint: a piece is tensor[begin:end], with 0 <= begin < end");
}

// Only the files say how many elements strided pieces have.
TEST(Pieces, AGapBetweenStridesIsDamage) {
  const Bytes zeros(64);
  const auto written = [&](const TemporaryFolder& out, std::int64_t step, const std::vector<std::pair<std::string, Shape>>& pieces) {
    std::vector<std::pair<std::string, StoredTensor>> tensors;
    for (const auto& [name, shape] : pieces) {
      const TensorType type{DType::f32, shape};
      tensors.push_back({name, {type, std::span(zeros).first(static_cast<std::size_t>(type.bytes()))}});
    }
    Checkpoint info;
    info.step = step;
    return write_checkpoint(out.path().string(), info, 9, [&](const std::string& folder) {
      write_safetensors(folder + "/device-0.safetensors", tensors);
      return std::vector<std::string>{"device-0.safetensors"};
    });
  };
  const auto failure_of = [&](const std::vector<std::pair<std::string, Shape>>& pieces) {
    const TemporaryFolder out;
    const std::string folder = written(out, 0, pieces), manifest = folder + "/manifest.json";
    const std::string message = message_of([&] { StateReader(checkpoint_source(folder)); });
    return message.starts_with(manifest) ? message.substr(manifest.size()) : message;
  };
  const std::string hint =
      "\n  hint: the checkpoint is damaged or from another program; --resume of the run's folder takes the newest intact one";
  EXPECT_EQ(failure_of({{"w[0:2/4]", {3, 2}}, {"w[2:4/4]", {3, 2}}}), "no error");
  EXPECT_EQ(failure_of({{"w[0:2/4]", {3, 2}}}), ": the pieces of \"w\" leave a gap: nobody wrote its elements [2:4]" + hint);
  EXPECT_EQ(failure_of({{"w[0:2/4]", {3, 2}}, {"w[2:4/4][0:2]", {2}}, {"w[2:4/4][3:6]", {3}}}),
            ": the pieces of \"w\" leave a gap: nobody wrote its elements [6:7]" + hint);
  EXPECT_EQ(failure_of({{"w[0:2/4]", {3, 2}}, {"w[2:4/4][0:4]", {4}}}),
            ": the pieces of \"w\" leave a gap: nobody wrote its elements [10:12]" + hint);
  EXPECT_EQ(failure_of({{"w[0:2/4]", {3, 2}}, {"w[2:8]", {6}}, {"w[9:12]", {3}}}), "no error");
  EXPECT_EQ(failure_of({{"w[0:1/4]", {3, 1}}, {"w[2:8]", {6}}, {"w[9:12]", {3}}}),
            ": the pieces of \"w\" leave a gap: nobody wrote its elements [1:2]" + hint);

  const TemporaryFolder out;
  const std::string folder = written(out, 0, {{"w[0:2/4]", {3, 2}}}), path = folder + "/manifest.json";
  Manifest manifest = parse_manifest(read_file(path), path);
  manifest.tensors["w[2:4/4]"] = "device-0.safetensors";
  write_file(path, print(manifest));
  EXPECT_EQ(message_of([&] { read_checkpoint(folder); }), folder + "/device-0.safetensors: there is no tensor \"w[2:4/4]\"" + hint);

  const TemporaryFolder run;
  const std::string intact = written(run, 1, {{"w[0:2/4]", {3, 2}}, {"w[2:4/4]", {3, 2}}});
  const std::string damaged = written(run, 2, {{"w[0:2/4]", {3, 2}}});
  const FoundCheckpoint found = find_checkpoint(run.path().string());
  EXPECT_EQ(found.checkpoint.folder, intact);
  ASSERT_EQ(found.damaged.size(), 1u);
  EXPECT_EQ(found.damaged[0].folder, damaged);
}

// Ends of random pieces of `elements`, ascending.
std::vector<std::int64_t> random_tiling(std::int64_t elements, std::mt19937_64& random) {
  std::vector<std::int64_t> ends;
  for (std::int64_t end = 0; end < elements;)
    ends.push_back(end += 1 + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(elements - end)));
  return ends;
}

// `tensor`, named whole or in random pieces, each with its bytes in `value`.
std::vector<std::pair<std::string, StoredTensor>> cut(const std::string& tensor, const TensorType& type, const Bytes& value,
                                                      std::mt19937_64& random) {
  if (random() % 4 == 0) return {{tensor, {type, value}}};
  std::vector<std::pair<std::string, StoredTensor>> out;
  std::int64_t begin = 0;
  const std::int64_t size = byte_size(type.dtype);
  for (const std::int64_t end : random_tiling(type.elements(), random)) {
    const auto bytes = std::span(value).subspan(static_cast<std::size_t>(begin * size), static_cast<std::size_t>((end - begin) * size));
    out.push_back({piece_name(tensor, begin, end), {{type.dtype, {end - begin}}, bytes}});
    begin = end;
  }
  return out;
}

TEST(Pieces, RandomTilingsReadAsTheyWereWritten) {
  for (std::uint64_t seed = 0; seed < test::rounds(100u); ++seed) {
    SCOPED_TRACE(concat("seed ", seed));
    std::mt19937_64 random(seed);
    const TensorType types[] = {{DType::f32, {static_cast<std::int64_t>(1 + random() % 40), 3}}, {DType::f64, {7}}, {DType::i64, {}}};
    std::vector<Bytes> values;
    std::vector<std::vector<std::pair<std::string, StoredTensor>>> files(3);
    for (std::size_t t = 0; t < std::size(types); ++t) values.push_back(random_bytes(static_cast<std::size_t>(types[t].bytes()), random));
    for (std::size_t t = 0; t < std::size(types); ++t)
      for (auto& part : cut(concat("t", t), types[t], values[t], random)) files[random() % files.size()].push_back(std::move(part));
    const TemporaryFolder out;
    const std::string folder = write_checkpoint(out.path().string(), {}, 1, [&](const std::string& path) {
      std::vector<std::string> names;
      for (std::size_t f = 0; f < files.size(); ++f)
        write_safetensors(concat(path, "/", names.emplace_back(concat("device-", f))), files[f]);
      return names;
    });
    const StateSource source = checkpoint_source(folder);
    StateReader reader(source);
    for (std::size_t t = 0; t < std::size(types); ++t)
      for (const auto& [name, expected] : cut(concat("t", t), types[t], values[t], random)) {
        Bytes found(expected.bytes.size());
        reader.read(name, expected.type, found);
        EXPECT_TRUE(std::ranges::equal(found, expected.bytes)) << name;
      }
  }
}

// Bytes of the elements of a piece, of which `value` has the whole tensor's.
Bytes bytes_of(const test::KnownPiece& piece, const TensorType& type, const Bytes& value) {
  Bytes out;
  for (const std::int64_t element : piece.elements) {
    const auto begin = value.begin() + element * byte_size(type.dtype);
    out.insert(out.end(), begin, begin + byte_size(type.dtype));
  }
  return out;
}

TEST(RandomPieces, OfCheckpointsReadAsTheyWereWritten) {
  for (std::uint64_t seed = 0; seed < test::rounds(100u); ++seed) {
    SCOPED_TRACE(concat("seed ", seed));
    test::Random random(seed);
    const TensorType type{test::coin(random, 0.5) ? DType::f32 : DType::bf16, test::random_sizes(random)};
    const Bytes value = random_bytes(static_cast<std::size_t>(type.bytes()), random);
    const std::vector<test::KnownPiece> held = test::random_pieces(random, "w", type.shape);
    std::vector<Bytes> bytes;
    for (const test::KnownPiece& piece : held) bytes.push_back(bytes_of(piece, type, value));
    std::vector<std::pair<std::string, StoredTensor>> tensors;
    for (std::size_t p = 0; p < held.size(); ++p) tensors.push_back({piece_name(held[p].piece), {{type.dtype, held[p].shape}, bytes[p]}});
    const TemporaryFolder out;
    const StateSource source = checkpoint_source(write_tensors(out, tensors));
    StateReader reader(source);
    std::vector<test::KnownPiece> wanted = test::random_pieces(random, "w", type.shape);
    for (const test::KnownPiece& piece : test::random_pieces(random, "w", type.shape)) wanted.push_back(piece);
    for (const test::KnownPiece& piece : wanted) {
      const Bytes expected = bytes_of(piece, type, value);
      Bytes found(expected.size());
      reader.read(piece_name(piece.piece), {type.dtype, piece.shape}, found);
      EXPECT_EQ(found, expected) << piece_name(piece.piece);
    }
    Bytes all(value.size());
    reader.read("w", type, all);
    EXPECT_EQ(all, value);
  }
}

}  // namespace
}  // namespace penstock
