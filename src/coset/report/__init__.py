"""Reports: numbers in, figures and one self-contained page out."""

from coset.report.page import Explorer as Explorer
from coset.report.page import Figure as Figure
from coset.report.page import Finding as Finding
from coset.report.page import Gallery as Gallery
from coset.report.page import Headline as Headline
from coset.report.page import Page as Page
from coset.report.page import Picture as Picture
from coset.report.page import Section as Section
from coset.report.page import Table as Table
from coset.report.page import render as render
from coset.report.page import write_page as write_page
from coset.report.pixel_panels import draw_pixels as draw_pixels
from coset.report.weights import draw_before_and_after as draw_before_and_after
from coset.report.weights import draw_marginals as draw_marginals
from coset.report.weights import draw_mass_profile as draw_mass_profile
from coset.report.weights import draw_pairs as draw_pairs
from coset.report.weights import draw_path as draw_path
