"""Bugs planted in a copy of the package, one at a time: each must fail the tests that guard it.

    python tests/mutants.py                  about 5 minutes; exit code 1 if one survives
    python tests/mutants.py clipping ledger  those whose name has one of these words

A text stands once in the package, wherever it lies: `test_mutants.py` fails when one is stale.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True, slots=True)
class Mutant:
    """One bug: what it is, the text that it replaces, by what, and the tests that must fail."""

    name: str
    old: str
    new: str
    tests: str


MUTANTS = (
    Mutant(
        "micro-batches: charged like records",
        "self.count_units(n), noise_multiplier / 2.0)",
        "self.count_units(n), noise_multiplier)",
        "training/test_micro_batches.py",
    ),
    Mutant(
        "micro-batches: the records of a micro-batch depend on the sample",
        "rows = units[:, None] + steps",
        "rows = units[:, None] + steps + len(units) % 2",
        "training/test_micro_batches.py",
    ),
    Mutant(
        "purchase-100: a line with another cell than 0 and 1 is read",
        "if plain and (features <= 1).all() and label.isdigit() and len(label) <= 3:",
        "if plain and label.isdigit() and len(label) <= 3:",
        "data/test_paper_sets.py",
    ),
    Mutant(
        "genes: a batch size is not charged",
        'PRIVACY_SETTINGS = ("steps", "steps_scale", "batch", "batch_share", "clip_norm")',
        'PRIVACY_SETTINGS = ("steps", "steps_scale", "batch_share", "clip_norm")',
        "training/test_settings.py",
    ),
    Mutant(
        "genes: weights do not decay",
        "max(0.0, 1.0 - decay)",
        "1.0",
        "training/test_trainer.py",
    ),
    Mutant(
        "user modules: the records of a batch are run together",
        "return self.map_records(lambda record: self.module(record[None])[0], x)",
        "return self.module(x)",
        "training/test_recordwise.py",
    ),
    Mutant(
        "user modules: the gradients belong to other dropout masks",
        "each.enter_record(None, 0, drawn)",
        "each.enter_record(None, 0, each.draws)",
        "training/test_recordwise.py",
    ),
    Mutant(
        "user modules: the gradient of a layer's other use is left out",
        "                if _has_closed_form(layer, inputs[key].squeeze(1), gradients[key]",
        "                if True or _has_closed_form(layer, inputs[key].squeeze(1), gradients[key]",
        "training/test_recordwise.py",
    ),
    Mutant(
        "user modules: a record for which the module raises an error stops the run",
        "if self.raises or isinstance(error, UsageError)",
        "if True or isinstance(error, UsageError)",
        "training/test_recordwise.py",
    ),
    Mutant(
        "user modules: an error of one record sets the rows of others to 0",
        "if len(rows[0]) > 1:\n            halves",
        "if False:\n            halves",
        "training/test_recordwise.py",
    ),
    Mutant(
        "user modules: an error that is caught for one record changes the rows of others",
        "            self.raised = True",
        "            pass",
        "training/test_recordwise.py",
    ),
    Mutant(
        "user modules: a rule for vmap sees all records",
        "            if name := _find_vmap_rule(func, args):",
        "            if (name := _find_vmap_rule(func, args)) and False:",
        "training/test_recordwise.py",
    ),
    Mutant(
        "user modules: an object outside of the network may store a record",
        "    if _list_mapped_tensors() - before:\n        yield",
        "    if False:\n        yield",
        "training/test_recordwise.py",
    ),
    Mutant(
        "user modules: random numbers beside dropout are not found",
        "if not torch.equal(run_again(), run_again()):",
        "if False:",
        "training/test_recordwise.py",
    ),
    Mutant(
        "user modules: an attribute may store a record",
        "            if before is not now:",
        "            if False:",
        "training/test_recordwise.py",
    ),
    Mutant(
        "user modules: a run is resumed with another class",
        "*extension_files(*makers)]:",
        "*extension_files()]:",
        "spaces/test_module_space.py",
    ),
    Mutant(
        "user modules: a result's file names a function that is called",
        "if not (inspect.isclass(found) and issubclass(found, nn.Module)):",
        "if not callable(found):",
        "spaces/test_module_space.py",
    ),
    Mutant(
        "user modules: a run is verified with another class",
        "        if wrote != own:",
        "        if False:",
        "spaces/test_module_space.py",
    ),
    Mutant(
        "resume: another plan is found when the keys are open",
        '| {"plan": _hash_json(plan.to_json())}',
        '| {"plan": ""}',
        "test_api.py",
    ),
    Mutant(
        "labels: NumPy infers the type of a pyarrow array from all values",
        'for name in ("to_pylist", "to_list"):',
        "for name in ():",
        "sklearn_api/test_labels_and_scores.py",
    ),
    Mutant(
        "labels: one integer decides the type of all floats",
        "own_types = (type(each) for each in labels.tolist() if not _is_nan(each))",
        "own_types = [type(each) for each in labels.tolist() if not _is_nan(each)]\n"
        "    own_types = [int if int in own_types and t is float else t for t in own_types]",
        "sklearn_api/test_labels_and_scores.py",
    ),
    Mutant(
        "report: the attack's success is rounded down",
        "math.ceil(value / digits - 1e-9)",
        "math.floor(value / digits)",
        "report/test_summary.py",
    ),
    Mutant(
        "report: weak protection is not said to be weak",
        "is_weak = given[0][1] > WEAK_PROTECTION_RATE",
        "is_weak = given[0][1] > 2",
        "report/test_summary.py",
    ),
    Mutant(
        "report: the most common class is no baseline",
        'if most["value"] > rival.at:',
        'if most["value"] < rival.at:',
        "report/test_quality.py",
    ),
    Mutant(
        "report: every trial with one equal part is released",
        'released = all(each["parameters"].get(name)',
        'released = any(each["parameters"].get(name)',
        "displays/test_displays.py",
    ),
    Mutant(
        "report: one feature within the noise makes all of them noise",
        "max(given) <= document.get(",
        "min(given) <= document.get(",
        "test_feature_selection.py",
    ),
    Mutant(
        "scores: the error of a share without its noise",
        "return math.sqrt(sample + own * (noise / of) ** 2)",
        "return math.sqrt(sample)",
        "training/test_from_cells.py",
    ),
    Mutant(
        "results: the least likely class is predicted",
        "self.schema.decode_class(scores.argmax(1))",
        "self.schema.decode_class(scores.argmin(1))",
        "test_results.py",
    ),
    Mutant(
        "results: the first features are the selected ones",
        'mask[best["places"]] = True',
        'mask[: len(best["places"])] = True',
        "test_feature_selection.py",
    ),
    Mutant(
        "sums: gradients are formed again, of other rows",
        "zip(own, captured.cache[FORMED_GRADIENTS_KEY], strict=True):",
        "zip(own, self.form_gradients(captured).values(), strict=True):",
        "training/test_rounding_of_sums.py",
    ),
    Mutant(
        "arrays: a label between two declared ones is taken for the next",
        "valid = known[classes] == labels",
        "valid = classes == classes",
        "data/test_array_labels.py",
    ),
    Mutant(
        "scores: within a ledger a score is not charged",
        '.reserve(secrets.token_hex(16), {"score": PureDP(epsilon=epsilon)}, n)',
        "",
        "sklearn_api/test_labels_and_scores.py",
    ),
    Mutant(
        "scores: within a ledger a score is exact",
        "noisy = NoisyCount(epsilon=epsilon).release(int(correct.sum()), stream)",
        "noisy = int(correct.sum())",
        "sklearn_api/test_labels_and_scores.py",
    ),
    Mutant(
        "scores: workers count their fits by themselves",
        "if FOLDER_VARIABLE not in os.environ:",
        "if os.environ.pop(FOLDER_VARIABLE, None) is None or True:",
        "sklearn_api/test_labels_and_scores.py",
    ),
    Mutant(
        "labels: the type of categories decides that of labels",
        "        return np.dtype(object)\n    if dtype is None or isinstance",
        "        dtype = dtype.categories.dtype\n    if dtype is None or isinstance",
        "test_estimators.py",
    ),
    Mutant(
        "lists: the first row decides the length of all",
        "    return max(lengths, key=lambda each: (lengths[each], each or 0), default=None)",
        "    return next(iter(lengths), None)",
        "test_estimators.py",
    ),
    Mutant(
        "labels: rows of several labels are missing labels",
        "    if _find_usual_length(rows) not in (None, 1):",
        "    if not rows:",
        "test_estimators.py",
    ),
    Mutant(
        "feature means: half the noise",
        "noise_multiplier=plan.noise(MEANS_LINE)",
        "noise_multiplier=0.5 * plan.noise(MEANS_LINE)",
        "features/test_engine.py",
    ),
    Mutant(
        "workers: a training receives its trial's whole stream",
        "return {purpose: stream.child(purpose) for purpose in STREAM_PURPOSES}",
        'return {**{each: stream.child(each) for each in STREAM_PURPOSES}, "trial": stream}',
        "search/test_fitness.py",
    ),
    Mutant(
        "sums: all records of a batch are one block",
        "BLOCK_RECORDS = 64\n",
        "BLOCK_RECORDS = 2**20\n",
        "training/test_rounding_of_sums.py",
    ),
    Mutant(
        "sums: totals are float32",
        "torch.zeros_like(flat, dtype=torch.float64) for flat in self.flats",
        "torch.zeros_like(flat) for flat in self.flats",
        "training/test_rounding_of_sums.py",
    ),
    Mutant(
        "sums: a group's total is lost",
        "            group.add_(total)\n",
        "            pass\n",
        "training/test_rounding_of_sums.py",
    ),
    Mutant(
        "noise: not scaled to the sensitivity as computed",
        "return SUM_ROUNDING * self.sensitivity",
        "return self.sensitivity",
        "training/test_rounding_of_sums.py",
    ),
    Mutant(
        "patches: an image's averages go on from the one before it",
        "        above[:], below[:] = FLOAT32_ZERO, FLOAT32_ZERO\n",
        "",
        "data/test_patches.py",
    ),
    Mutant(
        "patches: an image's rows begin one too far",
        "products[(image * rows + row) * width + column]",
        "products[(image * rows + row) * width + column + 1]",
        "data/test_patches.py",
    ),
    Mutant(
        "front ends: what another device has rounded is taken as well",
        "{self.front_end.version} {self.used_device}",
        "{self.front_end.version}",
        "data/test_cache.py",
    ),
    Mutant(
        "front ends: by coarse products",
        "with use_threads(1), full_precision():\n        team",
        "with threads(1):\n        team",
        "data/test_cache.py",
    ),
    Mutant(
        "temperature: the logits are not divided",
        "        divide_logits(self._network.state_dict(), self._recipe.temperature)\n",
        "",
        "training/test_temperature.py",
    ),
    Mutant(
        "temperature: the bias is not divided",
        "    for each in (weight, bias):\n        each.detach().div_",
        "    for each in (weight,):\n        each.detach().div_",
        "training/test_temperature.py",
    ),
    Mutant(
        "temperature: iterates that are compared with the last keep their logits",
        "            divide_logits(weights, self._temperature)\n",
        "            pass\n",
        "training/test_temperature.py",
    ),
    Mutant(
        "temperature: a feature selection trains for one class",
        "make_linear_recipe(len(records), self.noise, self.regression, self.outputs)",
        "make_linear_recipe(len(records), self.noise, self.regression)",
        "test_one_linear_model.py",
    ),
    Mutant(
        "front ends: by the threads of the moment",
        "with use_threads(1), full_precision():\n        team",
        "with full_precision():\n        team",
        "data/test_mapping.py",
    ),
    Mutant(
        "front ends: the last piece has as many records as there are",
        "if missing := many - len(piece):",
        "if missing := 0:",
        "data/test_mapping.py",
    ),
    Mutant(
        "sigmoids: torch's own",
        "x.mul_(0.5).tanh_().mul_(0.5).add_(0.5)",
        "x.sigmoid_()",
        "training/test_null_rows.py",
    ),
    Mutant(
        "rows of a product: MKL rounds them by where they lie",
        "os.environ.setdefault(MKL_MODE_VARIABLE, MKL_MODE)",
        "pass",
        "runs/test_processor.py",
    ),
    Mutant(
        "rows of a product: nobody looks whether they are alike",
        "if not all(bool((each == each[:1]).all()) for each in (out, back)):",
        "if out is back:",
        "training/test_products.py",
    ),
    Mutant(
        "joined layers: the gradient of the input that goes on is left out",
        "d = inner + d[:, :width]",
        "d = inner",
        "training/test_capture.py",
    ),
    Mutant(
        "rows of a part: as many as there is memory for",
        "even = each if most < each * threads else each * threads",
        "even = 1 if most < each * threads else each * threads",
        "training/test_null_rows.py",
    ),
    Mutant(
        "rows of a part: as many as a batch has",
        "return pad_to_parts(places, part) if vary and len(places) % part else (places, None)",
        "return places, None",
        "training/test_null_rows.py",
    ),
    Mutant(
        "a GPU's kernels: a class that is none counts",
        "use = use & (y >= 0) & (y < outputs)",
        "use = use & (y > -9e18)",
        "gpu/test_dense_steps.py",
    ),
    Mutant(
        "a GPU's kernels: records that are too large for halves",
        "use = use & (largest <= _MAX_SQUARED_NORM)",
        "use = use & (total <= _MAX_SQUARED_NORM)",
        "gpu/test_dense_steps.py",
    ),
    Mutant(
        "a GPU's noise: what is settled moves weights by other roundings",
        "PROGRAMS=SETTLE_PROGRAMS,\n        enable_fp_fusion=False",
        "PROGRAMS=SETTLE_PROGRAMS,\n        enable_fp_fusion=True",
        "gpu/test_kernels.py",
    ),
    Mutant(
        "a GPU's rounds: care moves weights by torch",
        "            self._dense_steps.update_from_stored_sum(self._finished)\n"
        "            self._finished += 1\n",
        "            super()._update_weights()\n",
        "gpu/test_dense_steps.py",
    ),
    Mutant(
        "a GPU's kernels: gradients without their factors",
        "each * factors[:, None], mask)",
        "each, mask)",
        "gpu/test_dense_steps.py",
    ),
    Mutant(
        "a GPU's kernels: rows that are no numbers are multiplied by 0",
        "if clears:  # 0 times NaN would be NaN",
        "if clears & (place < 0):",
        "gpu/test_dense_steps.py",
    ),
    Mutant(
        "a GPU's kernels: records that are no numbers are put beside the others",
        "used = mask & use[:, None]",
        "used = mask",
        "gpu/test_dense_steps.py",
    ),
    Mutant(
        "a GPU's kernels: a ReLU makes 0 of what is no number",
        "z = tl.where(z < 0.0, 0.0, z)",
        "z = tl.where(z > 0.0, z, 0.0)",
        "gpu/test_dense_steps.py",
    ),
    Mutant(
        "a GPU's kernels: fewer class weights than classes",
        "shares.dtype is torch.float32 and len(shares) == dense.outputs",
        "shares.dtype is torch.float32",
        "gpu/test_dense_steps.py",
    ),
    Mutant(
        "a GPU's kernels: records in no norm",
        "of_inputs = of_records\n",
        "of_inputs = of_records * 0.0\n",
        "gpu/test_dense_steps.py",
    ),
    Mutant(
        "a GPU's noise: a step's doubts are settled in the next one again",
        "tl.store(as_long_address(tl.load(own + DOUBTS_ADDRESS)), (row * 0).to(tl.int64))",
        "pass",
        "gpu/test_dense_steps.py",
    ),
    Mutant(
        "a GPU's kernels: a sum of many records goes on in float32",
        "    total = tl.zeros((M, N), tl.float64)\n",
        "    total = tl.zeros((M, N), tl.float32)\n",
        "gpu/test_dense_steps.py",
    ),
    Mutant(
        "a GPU's rounds: a block that did not come whole counts as there",
        "self._block = -1  # after",
        "self._block = block  # after",
        "gpu/test_dense_steps.py",
    ),
    Mutant(
        "a GPU's rounds: steps are looked at before they were given",
        "elif self._together is not None and self._together.has_pending_steps(dense):",
        "elif self._together is not None and not many:",
        "gpu/test_dense_steps.py",
    ),
    Mutant(
        "a GPU's kernels: null records count",
        "use = (tl.load(valid + slots, mask=there, other=0) != 0) & (total <= _MAX_SQUARED_NORM)",
        "use = total <= _MAX_SQUARED_NORM",
        "gpu/test_dense_steps.py",
    ),
    Mutant(
        "a GPU's kernels: second halves left out",
        "return _dot(a1, b1, _dot(a2, b1, _dot(a1, b2, found)))",
        "return _dot(a1, b1, found)",
        "gpu/test_dense_steps.py",
    ),
    Mutant(
        "a GPU's kernels: a unit's gradient is not dropped",
        'd = tl.where(h < float("inf"), d, 0.0)',
        "d = d * 1.0",
        "gpu/test_dense_steps.py",
    ),
    Mutant(
        "a GPU's kernels: a bias in no norm",
        "total += (of_inputs + plus) * of_outputs",
        "total += of_inputs * of_outputs",
        "gpu/test_dense_steps.py",
    ),
    Mutant(
        "a GPU's rounds: steps after a note stay",
        "right = dense.count_valid_steps(before.finished, many)",
        "right = max(many, dense.count_valid_steps(before.finished, many))",
        "gpu/test_dense_steps.py",
    ),
    Mutant(
        "a GPU's rounds: batches beyond their padding are cut off",
        "found = int(torch.minimum(self._over[low : low + many].min(), self._wrong))",
        "found = int(self._wrong)",
        "gpu/test_dense_steps.py",
    ),
    Mutant(
        "a GPU's noise: what float32 cannot tell is taken as it is",
        "doubt = (doubt | few) if ALL else (doubt | few) & here",
        "doubt = few if ALL else few & here",
        "gpu/test_kernels.py",
    ),
    Mutant(
        "a GPU's noise: what 127 bits do not decide is not noted",
        "tl.atomic_min(noted + each * 0, step.to(tl.int32) + each * 0, mask=wrong)",
        "pass",
        "gpu/test_kernels.py",
    ),
    Mutant(
        "a GPU's noise: doubts without room are forgotten",
        'tl.atomic_min(noted, steps, mask=doubt & (fits == 0), sem="relaxed")',
        "pass",
        "gpu/test_kernels.py",
    ),
    Mutant(
        "a GPU's noise: the same at every step of a block",
        "tl.load(given + NOISE_KEY), at, zero + step.to(tl.uint32), zero + low, zero + high",
        "tl.load(given + NOISE_KEY), at, zero, zero + low, zero + high",
        "gpu/test_kernels.py",
    ),
    Mutant(
        "a GPU's noise: bits of U in V",
        "v = c.to(tl.int64) | (d.to(tl.int64) << 32)",
        "v = c.to(tl.int64) | (b.to(tl.int64) << 32)",
        "gpu/test_kernels.py",
    ),
    Mutant(
        "dropout of a chain: the gradient passes where the mask is 0",
        "return module.apply_mask(d, saved)",
        "return d",
        "training/test_dense.py",
    ),
    Mutant(
        "looks: priced at a share of mu, trained with more",
        "recipes[recipe_index(candidate.settings)], None if mu is None else mu * shape.mu",
        "recipes[recipe_index(candidate.settings)], None if mu is None else 2 * mu * shape.mu",
        "search/test_ahead.py",
    ),
    Mutant(
        "looks: scores of training records at the whole budget",
        "epsilon = trial_mu * share",
        "epsilon = trial_mu",
        "search/test_ahead.py",
    ),
    Mutant(
        "looks: a score of training records charged to validation",
        'scored_on: ClassVar[str] = "train"',
        'scored_on: ClassVar[str] = "validation"',
        "search/test_ahead.py",
    ),
    Mutant(
        "grid: trained with more than the line of its level was given",
        "shape=RoundShape(mu=self.shares[level])",
        "shape=RoundShape(mu=self.shares[-1] * 1.01)",
        "search/test_grid.py",
    ),
    Mutant(
        "scores: charged to a line that was given another price",
        "events = [each for each in events if any(_contains_event(own, each) for own in wanted)]",
        "events = list(events)",
        "search/test_grid.py",
    ),
    Mutant(
        "variants: picked without noise",
        "place = noise.pick(reached, stream)",
        "place = reached.index(max(reached))",
        "search/test_variants.py",
    ),
    Mutant(
        "variants: thresholds from counts without noise",
        "place = variants.choose_threshold(noise.release(found, stream))",
        "place = variants.choose_threshold(found)",
        "search/test_variants.py",
    ),
    Mutant(
        "scores: counts of cells without noise",
        "return [each.release(count, own.child(cell)) for cell, count in enumerate(counts)]",
        "return list(counts)",
        "training/test_metrics.py",
    ),
    Mutant(
        "test: a table without noise",
        "        return noise.release(counts, stream)\n\n\nclass CountRatioMetric",
        "        return list(counts)\n\n\nclass CountRatioMetric",
        "training/test_metrics.py",
    ),
    Mutant(
        "test: a record in two cells of a table",
        "cells = (outputs * y.long() + answers.argmax(dim=1))[valid & (y >= 0) & (y < outputs)]\n",
        "cells = (outputs * y.long() + answers.argmax(dim=1))[valid & (y >= 0) & (y < outputs)]\n"
        "        cells = __import__('torch').cat([cells, cells])\n",
        "training/test_metrics.py",
    ),
    Mutant(
        "test: a table whatever its noise does to the score",
        "if bins * added <= limit:",
        "if slots:",
        "training/test_metrics.py",
    ),
    Mutant(
        "test: a table of errors whatever its noise does to the score",
        "small = table.estimate_spread(example, slots, deviation) <= MAX_ERROR_NOISE",
        "small = True",
        "training/test_metrics.py",
    ),
    Mutant(
        "forecast: a lead within the noise of the study is reported",
        "if _is_better(curves, best, kept, place):",
        "if means[best, place] > means[kept, place]:",
        "crossover/test_forecast.py",
    ),
    Mutant(
        "crossover: no correction for the number of tests",
        "float(stats.t.ppf(1 - (1 - CONFIDENCE_LEVEL) / (2 * tests), freedom))",
        "float(stats.t.ppf(1 - (1 - CONFIDENCE_LEVEL) / 2, freedom))",
        "crossover/test_curves.py",
    ),
    Mutant(
        "test: a table at twice the epsilon that is charged",
        "noise = metric.make_noise(self.plan.test.epsilon)",
        "noise = metric.make_noise(2 * self.plan.test.epsilon)",
        "search/test_engine.py",
    ),
    Mutant(
        "scores: noise for one point of many",
        "return NoisySum(epsilon=epsilon, most=self.max_points)",
        "return NoisySum(epsilon=epsilon, most=1)",
        "training/test_metrics.py",
    ),
    Mutant(
        "price: of the recipe without a candidate's settings",
        "(recipe, each, mu * shape.mu, slots) for recipe, each in kinds]",
        "(recipe, (), mu * shape.mu, slots) for recipe, _ in kinds]",
        "training/test_settings.py",
    ),
    Mutant(
        "schema: a third look at bins for nothing",
        'third = release_cell_counts(known, knots, sigma, stream.child("third"))',
        'third = release_cell_counts(known, knots, 1e-3, stream.child("third"))',
        "runs/test_quantiles.py data/test_estimation.py",
    ),
    Mutant(
        "front end: whitened records' mean with the noise of half their norm",
        "mechanism = FeatureMeans(noise_multiplier=given.noise_multiplier, row_bound=ROW_NORM)",
        "mechanism = FeatureMeans(noise_multiplier=given.noise_multiplier / 2, row_bound=ROW_NORM)",
        "data/test_front_ends.py",
    ),
    Mutant(
        "front end: a backbone that mixes the records of a batch",
        "return super().train(False)",
        "return super().train(mode)",
        "data/test_backbones.py",
    ),
    Mutant(
        "front end: centred on rows that are not cut",
        "total = total + clip_rows(x / row_bound, valid).sum(axis=0)",
        "total = total + (x / row_bound * valid[:, None]).sum(axis=0)",
        "features/test_views.py",
    ),
    Mutant(
        "training: no noise",
        "drawn().add_to(buffers.totals, scale, team)",
        "drawn().add_to(buffers.totals, 0.0, team)",
        "training/test_teeth.py",
    ),
    Mutant(
        "noise: float64 is trusted where it cannot tell",
        "abs(rest) <= 0.5 - FLOAT64_ERROR * wide",
        "abs(rest) <= 0.5",
        "runs/test_normals.py",
    ),
    Mutant(
        "noise: further bits are those that were drawn",
        'self.stream.child("finer").random_words(self.step, first)',
        "self.stream.random_words(self.step, first)",
        "runs/test_normals.py",
    ),
    Mutant(
        "noise: machine code trusts float32 where it cannot tell",
        "sure = np.nextafter(float32(0.5 - COMPILED_ERROR * wide), float32(0.0))",
        "sure = float32(0.5)",
        "runs/test_normals.py",
    ),
    Mutant(
        "noise: machine code takes what has too few bits",
        "_box_muller_radius(length) if MIN_U_BITS <= length <= MAX_U_BITS else NAN",
        "_box_muller_radius(length)",
        "runs/test_normals.py",
    ),
    Mutant(
        "noise: machine code says of another number that it is in doubt",
        "pair = low + (k & PAIR_MASK)",
        "pair = low + (k & (PAIR_MASK >> uint64(1)))",
        "runs/test_normals.py",
    ),
    Mutant(
        "noise: a zero has the sum's sign, in machine code",
        "(point + np.float64(moved) + 0.0) * np.float64(grain), abs",
        "(point + np.float64(moved)) * np.float64(grain), abs",
        "runs/test_normals.py",
    ),
    Mutant(
        "noise: a zero has the sum's sign, by arrays",
        "            points += 0.0  # -0 becomes 0, because",
        "            # -0 stays",
        "runs/test_normals.py",
    ),
    Mutant(
        "layer rules: the norm of a linear layer's input is left out",
        "return squares * bound_squared_row_norms(d)",
        "return bound_squared_row_norms(d)",
        "training/test_per_example.py",
    ),
    Mutant(
        "training: a null record has the factor of one that is there",
        "factors = torch.where(mask, factors, 0.0)",
        "factors = factors + 0.0",
        "training/test_dense.py",
    ),
    Mutant(
        "categories: a number is compared as it is spelled",
        "return self._fold_case(text) if number is None else number",
        "return self._fold_case(text)",
        "data/test_equal_values.py",
    ),
    Mutant(
        "check: a line read from the records does not say so",
        "[first + FROM_RECORDS_COMMENT * ((column, key) in read), *others]",
        "[first, *others]",
        "curator/test_check.py",
    ),
    Mutant(
        "check: codes with leading zeros are numbers",
        'return "number" if self.is_numeric and not self.is_code else "category"',
        'return "number" if self.is_numeric else "category"',
        "curator/test_check.py",
    ),
    Mutant(
        "units: their factors are left out",
        "(rest.strip(), factor * by)",
        "(rest.strip(), factor)",
        "curator/test_check.py",
    ),
    Mutant(
        "lines: a quotation mark that is not closed takes the rest of its line",
        "[plain], strict=True, delimiter=self.separator,",
        "[plain], strict=False, delimiter=self.separator,",
        "data/test_lines.py",
    ),
    Mutant(
        "blocks: a byte order mark before a line's first cell is dropped",
        " & (body[starts] != 0xEF)",
        "",
        "data/test_blocks.py",
    ),
    Mutant(
        "blocks: lines that are read alone come behind the others of their block",
        "convert_to_arrow_cells(cells)]).take(order)",
        "convert_to_arrow_cells(cells)])",
        "data/test_blocks.py",
    ),
    Mutant(
        "blocks: a carriage return within a line ends it",
        "        is_ordinary[own[returns + 1 != ends[own]]] = False\n",
        "",
        "data/test_blocks.py",
    ),
    Mutant(
        "blocks: a quotation mark that is not closed joins two lines",
        "        is_ordinary[np.diff(before, append=len(quotes)) % 2 == 1] = False\n",
        "",
        "data/test_blocks.py",
    ),
    Mutant(
        "text columns: a cell that is no decimal number has the number of another",
        "others = np.delete(np.arange(len(texts)), at)",
        "others = np.arange(len(texts) - len(at))",
        "data/test_text_columns.py",
    ),
    Mutant(
        "lines: one blank separates cells, not a run of them",
        "skipinitialspace=self.separator == BLANK",
        "skipinitialspace=False",
        "data/test_table_form.py",
    ),
    Mutant(
        "cells: accents are compared as they are encoded",
        "            text = normalize_unicode(text)\n",
        "",
        "data/test_equal_values.py",
    ),
    Mutant(
        "headers: numbers make a record of a line that holds all declared columns",
        "certain = bool(declared) and declared <= set(header)",
        "certain = False",
        "data/test_equal_values.py",
    ),
    Mutant(
        "layer rules: an LSTM's gates get the gradient of another step",
        "d_states[:, -1] = d",
        "d_states[:, 0] = d",
        "training/test_capture.py",
    ),
    Mutant(
        "layer rules: equal tokens of a record are not added up in the norm",
        "first = (numbers[:, :, None] == numbers[:, None, :]).byte().argmax(dim=2)",
        "first = torch.arange(length).expand_as(numbers)",
        "training/test_recurrent.py",
    ),
    Mutant(
        "layer rules: rounding of equal tokens is not added to the norm",
        "rounding = ROUNDINGS_PER_TERM * torch.finfo(d.dtype).eps * length**0.5",
        "rounding = 0.0",
        "training/test_recurrent.py",
    ),
    Mutant(
        "layer rules: the gradients of tokens are added up in float32",
        "found.index_put_((numbers,), terms.double(), accumulate=True)",
        "found = found.float().index_put_((numbers,), terms, accumulate=True)",
        "training/test_cancelling.py",
    ),
    Mutant(
        "layer rules: the gradient of a GRU's candidate takes the state before the reset gate",
        "return [torch.cat([x, before], dim=2), torch.cat([x, reset], dim=2)]",
        "return [torch.cat([x, before], dim=2), torch.cat([x, before], dim=2)]",
        "training/test_per_example.py",
    ),
    Mutant(
        "vocabulary: it is not an item of the plan, so it is not charged",
        "            return self.vocabulary is not None\n",
        "            return True\n",
        "data/test_estimation.py",
    ),
    Mutant(
        "vocabulary: all words of a record count",
        "counts.update(islice(valid, MAX_COUNTED_WORDS))",
        "counts.update(valid)",
        "data/test_estimation.py",
    ),
    Mutant(
        "vocabulary: a word counts as often as it occurs in a record",
        "valid = (word for word in dict.fromkeys(words) if is_word(word))",
        "valid = (word for word in words if is_word(word))",
        "data/test_estimation.py",
    ),
    Mutant(
        "vocabulary: noise for one word of a record",
        "noise_multiplier=self.noise_multiplier * math.sqrt(MAX_COUNTED_WORDS)",
        "noise_multiplier=self.noise_multiplier",
        "data/test_estimation.py",
    ),
    Mutant(
        "vocabulary: the probability that a unique word leaks is counted once for all of a record",
        "delta=self.delta / MAX_COUNTED_WORDS",
        "delta=self.delta",
        "data/test_estimation.py",
    ),
    Mutant(
        "layer rules: a pooled maximum's gradient goes elsewhere",
        "return maxima.contiguous(), (x, indices.contiguous(), window)",
        "return maxima.contiguous(), (x, indices.contiguous().flip(-1), window)",
        "training/test_capture.py",
    ),
    Mutant(
        "layer rules: a tempered sigmoid's slope without its temperature",
        "(0.25 * module.scale * module.temperature)",
        "(0.5 * module.scale)",
        "training/test_capture.py",
    ),
    Mutant(
        "capture: an overwritten tensor is not noticed",
        "if call.versions != (call.input._version, call.output._version):",
        "if False:",
        "training/test_per_example.py",
    ),
    Mutant(
        "training: one noise for all steps",
        "return np.random.Philox(key=key, counter=_check_step(step) << 192)",
        "return np.random.Philox(key=key, counter=0)",
        "runs/test_keys.py",
    ),
    Mutant(
        "training: no clipping",
        "(top / (norms * NORM_SLACK + plus)).clamp(max=most)",
        "norms.new_ones(norms.shape)",
        "training/test_clipping.py training/test_per_example.py",
    ),
    Mutant(
        "training: clipping that rounds up",
        "top / (norms * NORM_SLACK + plus)",
        "top / (norms / NORM_SLACK + plus)",
        "training/test_clipping.py",
    ),
    Mutant(
        "training: a null record counts",
        "mask = self.valid.index_select(0, places)",
        "mask = torch.ones_like(self.valid.index_select(0, places))",
        "training/test_trainer.py",
    ),
    Mutant(
        "linear backend: no noise",
        "            normals.add_small_noise(self._total, scale, words, self._stream, step, code)"
        "\n",
        "",
        "training/test_linear_backend.py",
    ),
    Mutant(
        "linear backend: no noise on many parameters",
        "            made.add_to(self._total, scale, team=self._team)\n",
        "",
        "training/test_linear_backend.py",
    ),
    Mutant(
        "linear backend: nothing is clipped",
        "        return self.clip_norm, 0.0, 1.0",
        "        return 1e9, 0.0, 1.0",
        "training/test_linear_backend.py",
    ),
    Mutant(
        "linear backend: null records count",
        "            if valid[slot] and square <= MAX_SQUARE:",
        "            if square <= MAX_SQUARE:",
        "training/test_linear_backend.py",
    ),
    Mutant(
        "linear backend: norms without the input",
        "                np.float64(squares[slot]), square_d, inputs, outputs, bias >= 0\n",
        "                0.0, square_d, inputs, outputs, bias >= 0\n",
        "training/test_linear_backend.py",
    ),
    Mutant(
        "linear backend: squares of float32, which underflow",
        "    return (square_d + lost_d) * (square_x + lost_x + (1.0 if biased else 0.0))",
        "    return np.float64(np.float32(square_d)) * (square_x + (1.0 if biased else 0.0))",
        "training/test_linear_backend.py",
    ),
    Mutant(
        "linear backend: squares that float32 cannot hold count",
        "            if valid[slot] and square <= MAX_SQUARE:",
        "            if valid[slot] and square < math.inf:",
        "training/test_linear_backend.py",
    ),
    Mutant(
        "linear backend: norms without the bias",
        "(square_x + lost_x + (1.0 if biased else 0.0))",
        "(square_x + lost_x)",
        "training/test_linear_backend.py",
    ),
    Mutant(
        "linear backend: a clipping method with factors of its own",
        "named and kind.sums is ClippingMethod.sums and kind.factors is ClippingMethod.factors",
        "named and kind.sums is ClippingMethod.sums",
        "training/test_linear_backend.py",
    ),
    Mutant(
        "linear backend: a gradient that is not finite is multiplied by 0",
        "d[k] = d[k] * factor if factor > FLOAT_ZERO else FLOAT_ZERO",
        "d[k] = d[k] * factor",
        "training/test_linear_backend.py",
    ),
    Mutant(
        "linear backend: a record that is not finite is multiplied by 0",
        "            if row >= count or not counts[row]:\n",
        "            if row >= count:\n",
        "training/test_linear_backend.py",
    ),
    Mutant(
        "linear backend: rows behind the last record are those of an earlier block",
        "        d[count * shape[1] :] = FLOAT_ZERO\n",
        "",
        "training/test_linear_backend.py",
    ),
    Mutant(
        "linear backend: every thread adds all blocks",
        "range(first * BLOCK_RECORDS, len(indices), apart * BLOCK_RECORDS)",
        "range(first * BLOCK_RECORDS, len(indices), BLOCK_RECORDS)",
        "training/test_linear_backend.py",
    ),
    Mutant(
        "linear backend: the first thread's sum is all",
        "            self._total[low:high] += each[low:high]",
        "            pass",
        "training/test_linear_backend.py",
    ),
    Mutant(
        "linear backend: one running float32 sum",
        "        sums[:] = FLOAT_ZERO\n",
        "",
        "training/test_linear_backend.py",
    ),
    Mutant(
        "linear backend: every step has the first one's words",
        "        self._counters[:, 0] = _check_step(step)",
        "        self._counters[:, 0] = 0 * _check_step(step)",
        "training/test_linear_backend.py",
    ),
    Mutant(
        "linear backend: every step has the first one's batch",
        '            state["state"]["counter"][3] = _check_step(step)',
        '            state["state"]["counter"][3] = 0',
        "training/test_linear_backend.py",
    ),
    Mutant(
        "linear backend: doubtful numbers of few stay",
        "surer,\n                        least, most,\n                    )  # fmt: skip\n"
        "                    if near:",
        "surer,\n                        least, most,\n                    )  # fmt: skip\n"
        "                    if False:",
        "training/test_linear_backend.py",
    ),
    Mutant(
        "a parameter may have any size",
        "        if found is not None and tuple(found.shape) != shape:\n",
        "        if False:\n",
        "training/test_per_example.py",
    ),
    Mutant(
        "cancelling: views are added up in float32",
        "            wide = torch.float64 if captured.views > 1 else factors.dtype\n",
        "            wide = factors.dtype\n",
        "training/test_cancelling.py",
    ),
    Mutant(
        "cancelling: steps are added up in float32",
        "                own.addmm_(own_d.T, own_a)\n",
        "                own += torch.mm(own_d.float().T, own_a.float())\n",
        "training/test_cancelling.py",
    ),
    Mutant(
        "ahead: a trained layer is taken for a frozen one",
        "        return not any(p.requires_grad for p in module.parameters())\n",
        "        return True\n",
        "training/test_ahead_of_layers.py",
    ),
    Mutant(
        "ahead: any tempered sigmoid is taken for a tanh",
        "        return nn.Tanh if is_tanh else None\n",
        "        return nn.Tanh\n",
        "training/test_dense.py",
    ),
    Mutant(
        "rounds: a note is not read",
        "right = 0 if self._rounds.pop_uncertain() else many",
        "right = many",
        "gpu/test_rounds.py",
    ),
    Mutant(
        "rounds: a round is undone but for the optimizer",
        "        self._optimizer.restore(before.optimizer)\n",
        "",
        "gpu/test_rounds.py",
    ),
    Mutant(
        "rounds: no noise",
        "        alone = None if careful else UnrefinedNormals.of(words[0], self._count)",
        "        alone = None",
        "gpu/test_rounds.py",
    ),
    Mutant(
        "rounds: padding counts",
        "mask = mask if real is None else mask & real",
        "mask = mask",
        "gpu/test_rounds.py",
    ),
    Mutant(
        "rounds: a batch ends with its padding",
        "        if not bool(padded.more):\n",
        "        if True:\n",
        "gpu/test_rounds.py",
    ),
    Mutant(
        "rounds: the slot beyond the padding is drawn anew",
        "np.append(first, behind)",
        "int(padded.places[-1]) + 1"
        " + self._batching.indices(self._n - int(padded.places[-1]) - 1, generator)",
        "gpu/test_rounds.py",
    ),
    Mutant(
        "rounds: an interrupted round keeps its weights",
        "        training.undo_round()\n",
        "",
        "gpu/test_rounds.py",
    ),
    Mutant(
        "in turns: who lacks memory among others fails",
        "            if turn.was_postponed:\n",
        "            if False:\n",
        "search/test_population.py",
    ),
    Mutant(
        "rounds: gaps of another q",
        "div_(math.log1p(-q))",
        "div_(-q)",
        "gpu/test_rounds.py",
    ),
    Mutant(
        "rounds: a number errs as float64 does at best",
        "errors = (1.0 / lengths + 2.0**-53) / radii + UNREFINED_ERROR",
        "errors = 0.0 * radii + 2.0**-52",
        "gpu/test_rounds.py",
    ),
    Mutant(
        "rounds: what is not finite in one layer counts in the others",
        "factors = torch.where(mask & finite, factors, 0.0)",
        "factors = torch.where(mask, factors, 0.0)",
        "gpu/test_rounds.py training/test_per_example.py",
    ),
    Mutant(
        "training: the last step is free",
        "SelfComposition(self.release(n, self.noise_multiplier * factor, dimension), count)",
        "SelfComposition(self.release(n, self.noise_multiplier * factor, dimension), "
        "count - 1 or 1)",
        "training/test_recipe.py training/test_stages.py",
    ),
    Mutant(
        "training: sampling priced at half its rate",
        "return PoissonGaussian(self.sampling_probability, noise_multiplier)",
        "return PoissonGaussian(self.sampling_probability / 2, noise_multiplier)",
        "training/test_batching.py training/test_recipe.py",
    ),
    Mutant(
        "training: the first query of a screening is free",
        'return check_positive_integer("steps", steps) // self.every + 1\n\n    def probability',
        'return check_positive_integer("steps", steps) // self.every\n\n    def probability',
        "training/test_screening.py",
    ),
    Mutant(
        "training: private queries as often as public ones",
        "if recipe.screening is not None and request.validate_on is None and not sets_interval:",
        "if recipe.screening is not None and request.validate_on is None and False:",
        "test_train.py",
    ),
    Mutant(
        "training: an update is taken whatever the coin",
        "if forced or float(coin) <= self.probability(state, new_loss):",
        "if True:",
        "training/test_screening.py",
    ),
    Mutant(
        "accounting: a count of repeats forgotten",
        "total = total + count * np.where(values >= 0, values, np.inf)",
        "total = total + np.where(values >= 0, values, np.inf)",
        "accounting/test_accountants.py accounting/test_renyi.py",
    ),
    Mutant(
        "accounting: another adjacency",
        "sampling_prob=atom.sampling_probability,\n"
        "                neighboring_relation=NeighboringRelation.REPLACE_SPECIAL",
        "sampling_prob=atom.sampling_probability,\n"
        "                neighboring_relation=NeighboringRelation.REPLACE_ONE",
        "accounting/test_pins.py",
    ),
    Mutant(
        "accounting: partitions cost the least of theirs",
        "return max(prices.values(), key=lambda each: each.epsilon), prices",
        "return min(prices.values(), key=lambda each: each.epsilon), prices",
        "accounting/test_accountants.py",
    ),
    Mutant(
        "accounting: a leak costs nothing",
        "case events.ApproximateDP():\n            return atom.delta",
        "case events.ApproximateDP():\n            return 0.0",
        "accounting/test_renyi.py accounting/test_accountants.py",
    ),
    Mutant(
        "accounting: a filter rounds downwards",
        "np.nextafter(self._spent + added, np.inf)",
        "np.nextafter(self._spent + added, -np.inf)",
        "accounting/test_filters.py",
    ),
    Mutant(
        "accounting: noise on the wrong side of the budget",
        "while not cost <= budget.epsilon:",
        "while not cost <= budget.epsilon * 1.01:",
        "accounting/test_calibration.py",
    ),
    Mutant(
        "accounting: a selection as if it ran once",
        "return law.base_mean * float(profile.at(0.0))",
        "return 0.0",
        "accounting/test_selection.py accounting/test_accountants.py",
    ),
    Mutant(
        "release: a count without noise",
        "return number + draw_discrete_laplace(Fraction(self.epsilon), source.draw_below)",
        "return number",
        "runs/test_mechanisms.py",
    ),
    Mutant(
        "release: two counts share their noise",
        'stream.child("noisy count", self.epsilon.hex(), number)',
        'stream.child("noisy count", self.epsilon.hex())',
        "runs/test_mechanisms.py",
    ),
    Mutant(
        "release: a pick at twice its price",
        "Fraction(self.epsilon) / (2 * self.most)\n        while True:",
        "Fraction(self.epsilon) / self.most\n        while True:",
        "search/test_portions.py",
    ),
    Mutant(
        "release: rows are not bounded",
        "outside = ~(_compute_row_norms(rows) * grown <= 1)",
        "outside = _compute_row_norms(rows) < 0",
        "runs/test_sums.py",
    ),
    Mutant(
        "purchase: categories of one record",
        "if pair[0] >= self.threshold]",
        "if pair[0] >= 0]",
        "runs/test_estimates.py",
    ),
    Mutant(
        "data: a receipt of another partition opens it",
        "isinstance(receipt, Receipt) and receipt.partition == self.name",
        "isinstance(receipt, Receipt)",
        "data/test_partitions.py",
    ),
    Mutant(
        "data: a closed receipt opens a partition",
        "if not (issued and receipt.active is True):",
        "if not issued:",
        "data/test_partitions.py",
    ),
    Mutant(
        "ledger: over the plan",
        "< (SELECT count FROM lines WHERE",
        "<= (SELECT count FROM lines WHERE",
        "runs/test_ledger.py",
    ),
    Mutant(
        "images: what other programs leave is a class",
        'return path.name.startswith(".") or path.name.lower() in SYSTEM_FILE_NAMES',
        "return False",
        "data/test_images.py",
    ),
    Mutant(
        "images: classes are numbers",
        "known = self.class_names if self.labels is None else self.labels",
        "known = self.labels",
        "data/test_images.py",
    ),
    Mutant(
        "onnx: numbers that mean missing are numbers in the graph",
        "if markers := column.cell_format.missing_numbers:",
        "if markers := []:",
        "test_onnx_export.py",
    ),
    Mutant(
        "new records: a table of one feature has a target",
        "min_columns=min(MIN_COLUMNS, len(names))",
        "min_columns=MIN_COLUMNS",
        "data/test_table_form.py",
    ),
    Mutant(
        "ledger: made in its place, table by table",
        "with linked_draft(path) as draft, closing(connect(draft)) as connection:",
        "with open(path, 'x'), closing(connect(path)) as connection:",
        "runs/test_kills.py",
    ),
    Mutant(
        "keys: written in their place",
        "atomic_write(path, json.dumps(content))",
        "path.write_text(json.dumps(content))",
        "runs/test_kills.py",
    ),
    Mutant(
        "ledger: a lost shared ledger is made again",
        "if before is not None and not path.exists():",
        "if False:",
        "test_api.py",
    ),
    Mutant(
        "lifecycle: a run whose folder is gone is said to be free",
        'if (folder.private / "run.json").exists():',
        "if True:",
        "test_api.py",
    ),
    Mutant(
        "ledger: one charge for two inputs",
        "if before and before != set(names):",
        "if False:",
        "runs/test_ledger.py",
    ),
    Mutant(
        "ledger: runs beyond what all may cost",
        "if after.epsilon <= total.epsilon:",
        "if True:",
        "runs/test_shared_ledger.py",
    ),
    Mutant(
        "ledger: a finished run is added again",
        "if name in known:",
        "if name in known[1:]:",
        "test_ledger_page.py",
    ),
    Mutant(
        "ledger: a finished run is added out of order",
        'if day is not None and rows and day < rows[-1]["day"]:',
        "if False:",
        "test_ledger_page.py",
    ),
    Mutant(
        "verify: the price is believed",
        'if not is_equal_rounded(stated["epsilon"], price.epsilon):',
        "if False:",
        "test_verification.py",
    ),
    Mutant(
        "verify: another document is believed",
        "        if not same:",
        "        if False:",
        "test_verification.py",
    ),
    Mutant(
        "refusal: a run that is certain to fail begins",
        "    request = prepared.request\n    check_not_refused(prepared)\n",
        "    request = prepared.request\n",
        "test_refusals.py",
    ),
    Mutant(
        "refusal: force does not matter",
        "if not reasons or prepared.request.force:",
        "if not reasons:",
        "test_refusals.py",
    ),
    Mutant(
        "classes: one class is trained on",
        "    _check_classes_found(plan, estimated, keys)\n",
        "",
        "test_refusals.py",
    ),
    Mutant(
        "classes: the list is estimated with the noise of many items",
        "Budget(MAX_CLASS_SHARE * budget.epsilon, budget.delta),",
        "Budget(MAX_CLASS_SHARE * budget.epsilon / 4, budget.delta),",
        "test_refusals.py",
    ),
    Mutant(
        "imports: upwards",
        "draws = math.ceil(q * n + 4 * math.sqrt(q * n)) + 4",
        "from pasearch.search import engine\n        draws = 2 * n if engine else 4",
        "test_layers.py",
    ),
    Mutant(
        "imports: a file is read where no file is",
        "generator.geometric(q, size=draws)",
        "generator.geometric(q, size=draws if n else np.load(str(n)))",
        "test_layers.py",
    ),
    Mutant(
        "imports: a layer below the report imports it by a string",
        'LOADERS["report"]().plan_html(plan)',
        '__import__("importlib").import_module("pasearch.report.notebook").plan_html(plan)',
        "test_layers.py",
    ),
    Mutant(
        "versions: a shared ledger of 0.1 has another table",
        "events TEXT NOT NULL, curve TEXT NOT NULL) WITHOUT ROWID",
        "events TEXT NOT NULL, curve BLOB NOT NULL) WITHOUT ROWID",
        "runs/test_shared_ledger.py",
    ),
    Mutant(
        "versions: an unfinished run is not bound to the version of pasearch",
        '"pasearch": pasearch.__version__, "python"',
        '"pasearch": "0.1.0", "python"',
        "test_api.py",
    ),
    Mutant(
        "papers: Lemma 1 whatever the sign of the residual",
        "(side * math.sqrt(square) - residual)",
        "(side * math.sqrt(square) - abs(residual))",
        "crossover/test_theory.py",
    ),
    Mutant(
        "papers: random weights training freezes the first layer alone",
        'check_positive_integer("count", count), len(hidden)) - 1',
        'max(check_positive_integer("count", count), len(hidden)), len(hidden)) - 1',
        "spaces/test_networks.py",
    ),
    Mutant(
        "papers: records beyond the paper's split are tested on",
        "unused = n - train - validation - printed.test",
        "unused = 0",
        "data/test_partitions.py",
    ),
    Mutant(
        "screening: the tuned rate of a short training has no limit",
        "rate = min(rate, MAX_SCREENED_STEP / recipe.bounding.sensitivity)",
        "pass",
        "training/test_screening.py",
    ),
    Mutant(
        "packed records: the features of a null record stay",
        "own[~valid[part]] = 0.0",
        "pass",
        "data/test_compact.py data/test_disk.py",
    ),
    Mutant(
        "packed records: numbers of another record",
        'kept["numbers"][:, self.numbers]',
        'kept["numbers"][::-1, self.numbers]',
        "data/test_compact.py data/test_disk.py",
    ),
    Mutant(
        "plan: a line may use the epsilon of the lines before it",
        "self.lines if share == 1.0 else []",
        "[]",
        "search/test_engine.py features/test_plan.py",
    ),
    Mutant(
        "ledger --add: a known run of another cost is not refused",
        "if not math.isclose(own.epsilon, known[name].epsilon, rel_tol=1e-6):",
        "if False:",
        "test_ledger_page.py",
    ),
    Mutant(
        "objective perturbation: the solver stops where released digits depend on its path",
        "WEIGHT_TOLERANCE = 1e-12",
        "WEIGHT_TOLERANCE = 1e-7",
        "features/test_logistic.py",
    ),
    Mutant(
        "capture: by hooks, a layer that overwrites its input is not noticed",
        "versions = before[layer], output._version",
        "versions = arguments[0]._version, output._version",
        "training/test_capture.py",
    ),
)


def places(mutant: Mutant, package: Path = ROOT / "pasearch") -> list[Path]:
    """Return the files that hold a mutant's text, each as often as it does."""
    return [
        file
        for file in sorted(package.rglob("*.py"))
        for _ in range(file.read_text().count(mutant.old))
    ]


def killed(mutant: Mutant, copy: Path) -> bool:
    """Whether the tests of a mutant fail with it; the copy is as before afterwards."""
    (file,) = places(mutant, copy / "pasearch")
    honest = file.read_text()
    file.write_text(honest.replace(mutant.old, mutant.new))
    try:
        tests = [f"tests/{each}" for each in mutant.tests.split()]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider",
             *tests], cwd=copy, capture_output=True, text=True,
        )  # fmt: skip
    finally:
        file.write_text(honest)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{mutant.name}: the tests did not run\n{done.stdout[-2000:]}")
    return done.returncode == 1


def main(words: list[str]) -> int:
    """Plant the mutants that are named, or all; print what became of each."""
    survivors = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for part in ("pasearch", "tests", "benchmarks/crossover"):
            shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", copy)
        for mutant in MUTANTS:
            if words and not any(word in mutant.name for word in words):
                continue
            begun = time.monotonic()
            dead = killed(mutant, copy)
            survivors += not dead
            seconds = time.monotonic() - begun
            print(f"{'killed' if dead else 'SURVIVED'}  {mutant.name}  ({seconds:.0f} s)")
    return int(survivors > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
